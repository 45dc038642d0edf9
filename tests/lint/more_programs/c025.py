# d2l style, right.
import torch


def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()


w = torch.zeros(4, 1, requires_grad=True)
for epoch in range(3):
    X, y = torch.randn(10, 4), torch.randn(10, 1)
    loss = (X @ w - y) ** 2 / 2
    loss.sum().backward()
    sgd([w], 0.03, 10)
