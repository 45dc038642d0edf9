# Written after the rules were, in other styles than those they were made with.
import torch
w = torch.randn(10, 1, requires_grad=True)
for x, y in data:
    loss = ((x @ w - y) ** 2).mean()
    g = torch.autograd.grad(loss, w)[0]
    w = w - 0.1 * g  # expect: update-with-grad
