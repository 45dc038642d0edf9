# A question asked often in the forums; after no single report.
import torch
import torch.nn as nn
import torch.optim as optim

model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = optim.SGD(model.parameters(), lr=0.1)
loss_fn = nn.MSELoss()


def make_recorder():
    seen = []

    def record(value):
        seen.append(value)  # expect: history-stored creep
        return len(seen)

    return record


record = make_recorder()
for step in range(1000):
    x = torch.randn(32, 10)
    loss = loss_fn(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    record(loss)
