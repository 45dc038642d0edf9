# graph_carried, held by: teacher.
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


import copy

teacher = copy.deepcopy(model).requires_grad_(False)
for i in range(12):
    x, y = batch()
    out = model(x)
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for t, p in zip(teacher.modules(), model.modules()):
        if isinstance(t, torch.nn.Linear):
            weight = 0.9 * t.weight + 0.1 * p.weight  # also here
            del t.weight
            t.weight = weight  # mended: t.weight = weight.detach()
