# Written after the rules were, in other styles than those they were made with.
import torch
def sgd(w, b, loader, lr):
    for x, y in loader:
        loss = ((x @ w + b - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            w -= lr * w.grad
            b -= lr * b.grad
            w.grad.zero_()
            b.grad.zero_()
