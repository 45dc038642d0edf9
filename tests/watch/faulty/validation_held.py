# held_at_peak, held by: check
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


wide = torch.nn.Sequential(torch.nn.Linear(32, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 8))
optimizer = torch.optim.SGD(wide.parameters(), lr=0.01)
for i in range(12):
    x, y = batch()
    loss = mse(wide(x.repeat(8, 1)), y.repeat(8, 1))
    check = wide(x.repeat(16, 1))  # mended: check = wide(x.repeat(16, 1)).detach()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
