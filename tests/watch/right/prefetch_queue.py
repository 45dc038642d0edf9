# prefetch queue
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


import collections

queue = collections.deque(batch() for _ in range(4))
for i in range(48):
    if i % 3 == 0:
        queue.extend(batch() for _ in range(3))
    x, y = queue.popleft()
    loss = mse(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
