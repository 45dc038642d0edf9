# graph_carried, held by: meter.sum
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


class Meter:
    sum = count = 0

    def update(self, value, n=1):
        self.sum += value * n  # mended: self.sum += float(value.detach()) * n
        self.count += n


meter = Meter()
for i in range(12):
    x, y = batch()
    out = model(x)
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meter.update(loss, len(x))
