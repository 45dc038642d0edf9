# graph_kept, held by: cache[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


encoder = torch.nn.Linear(32, 32)
cache = {}


def encode(key, x):
    if key not in cache:
        cache[key] = encoder(x)  # mended: cache[key] = encoder(x).detach()
    return cache[key]


for i in range(12):
    x, y = batch()
    loss = mse(model(encode(i, x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
