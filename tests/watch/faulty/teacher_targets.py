# graph_kept, held by: targets[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


teacher = torch.nn.Linear(32, 8)
targets = []
for i in range(12):
    x, y = batch()
    target = teacher(x)  # mended: target = teacher(x).detach()
    targets.append(target.mean())  # also here
    loss = mse(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
