# double backward penalty
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


for i in range(40):
    x, y = batch()
    x.requires_grad_()
    loss = mse(model(x), y)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    optimizer.zero_grad()
    (loss + gradient.square().mean()).backward()
    optimizer.step()
