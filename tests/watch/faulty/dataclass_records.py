# graph_kept, held by: run.records[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


import dataclasses


@dataclasses.dataclass
class Record:
    step: int
    loss: object


@dataclasses.dataclass
class Run:
    records: list = dataclasses.field(default_factory=list)


run = Run()
for i in range(12):
    x, y = batch()
    out = model(x)
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.records.append(Record(i, loss))  # mended: run.records.append(Record(i, loss.item()))
