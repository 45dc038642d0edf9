# held_at_peak, held by: scores
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


layer = torch.nn.Linear(32, 4096)
for i in range(12):
    x, y = batch()
    hidden = layer(x.repeat(8, 1))
    with torch.no_grad():
        wide = torch.sigmoid(hidden)
    loss = wide.mean() + hidden.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        scores = layer(x.repeat(16, 1))  # mended: scores = layer(x.repeat(16, 1)).mean()
