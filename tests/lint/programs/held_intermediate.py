# https://pytorch.org/docs/stable/notes/faq.html
import torch


@torch.no_grad()
def summarise(f, g, h, inputs):
    result = 0
    for i in range(5):
        intermediate = f(inputs[i])  # expect: tensor-held peak
        result += g(intermediate)
    return h(result)
