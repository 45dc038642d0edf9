# variable batches
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


for i in range(60):
    n = 1 + int(torch.randint(1, 60, ()))
    loss = mse(model(torch.randn(n, 32)), torch.randn(n, 8))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
