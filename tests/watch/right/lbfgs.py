# a closure that is called again, and a history of detached directions
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=50)
x, y = batch()


def closure():
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward()
    return loss


for i in range(14):
    optimizer.step(closure)
