# gradients accumulated over four backwards
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


for i in range(40):
    x, y = batch()
    loss = mse(model(x), y) / 4
    loss.backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
