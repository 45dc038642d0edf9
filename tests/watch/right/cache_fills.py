# a cache that fills and stops
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


cache = {}


def mask(n):
    if n not in cache:
        cache[n] = torch.ones(n, n).tril()
    return cache[n]


for i in range(40):
    mask(16 + i % 9)
    x, y = batch()
    out = model(x)
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
