# tensors_kept, held by: cache
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


cache = {}
for i in range(12):
    x, y = batch()
    if x not in cache:
        cache[x] = x.sum().item()  # mended: cache[int(x.shape[0])] = x.sum().item()
    loss = mse(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
