# accumulation uneven
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


for i in range(48):
    x, y = batch()
    loss = mse(model(x), y) / 5
    loss.backward()
    if i % 5 == 4 or i % 7 == 6:
        optimizer.step()
        optimizer.zero_grad()
