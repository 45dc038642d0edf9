# graph_kept, held by: log[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


log = []
for i in range(24):
    x, y = batch()
    out = model(x)
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 3 == 0:
        log.append(loss)  # mended: log.append(loss.item())
