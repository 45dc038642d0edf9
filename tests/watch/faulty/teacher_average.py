# graph_carried, held by: teacher[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


teacher = [p.detach().clone() for p in model.parameters()]
for i in range(12):
    x, y = batch()
    out = model(x)
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    teacher = [0.9 * t + 0.1 * p for t, p in zip(teacher, model.parameters())]  # mended: teacher = [0.9 * t + 0.1 * p.detach() for t, p in zip(teacher, model.parameters())]
