# losses of four batches kept on purpose, for one backward
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


for i in range(14):
    losses = []
    for part in range(4):
        x, y = batch()
        losses.append(mse(model(x), y))
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
