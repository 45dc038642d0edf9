# a backward that is differentiated itself
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


for i in range(14):
    x, y = batch()
    x.requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = mse(out, y) + (slope.norm(dim=1) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
