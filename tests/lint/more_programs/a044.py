# By hand, right.
import torch

w = torch.randn(3, requires_grad=True)
x, y = torch.randn(100, 3), torch.randn(100)
for _ in range(500):
    loss = (x @ w - y).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.05 * w.grad
        w.grad.zero_()
