# Manual SGD over a list of tensors that require grad, in a function without no_grad.
import torch


def sgd(params, lr):
    for p in params:
        p -= lr * p.grad  # expect: update-with-grad
        p.grad.zero_()


w = torch.zeros(4, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for epoch in range(3):
    X, y = torch.randn(10, 4), torch.randn(10, 1)
    loss = ((X @ w + b - y) ** 2 / 2).mean()
    loss.backward()
    sgd([w, b], 0.03)
