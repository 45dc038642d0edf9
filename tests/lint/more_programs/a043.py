# Gradient descent by hand, forgetting no_grad: w becomes a result of the graph.
import torch

w = torch.randn(3, requires_grad=True)
x, y = torch.randn(100, 3), torch.randn(100)
for _ in range(500):
    loss = (x @ w - y).pow(2).mean()
    (g,) = torch.autograd.grad(loss, w)
    w = w - 0.05 * g  # expect: update-with-grad
