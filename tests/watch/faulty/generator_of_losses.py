# graph_kept, held by: seen[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


def losses():
    seen = []
    while True:
        x, y = batch()
        loss = mse(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss)  # mended: seen.append(loss.item())
        yield seen[-1]


source = losses()
for i in range(12):
    next(source)
