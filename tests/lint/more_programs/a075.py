# Activations caught by hooks, in a list that nobody clears.
import torch

activations = []


def grab(module, inputs, output):
    activations.append(output)  # expect: history-stored


def train(model, loader, opt, loss_fn):
    for layer in model.children():
        layer.register_forward_hook(grab)
    for x, y in loader:
        loss = loss_fn(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
