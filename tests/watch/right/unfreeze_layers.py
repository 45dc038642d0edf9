# unfreeze layers
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


for p in model.parameters():
    p.requires_grad_(False)
layers = [model[2], model[0]]
for i in range(48):
    if i % 20 == 0 and layers:
        layers.pop(0).requires_grad_(True)
    x, y = batch()
    out = model(x)
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
