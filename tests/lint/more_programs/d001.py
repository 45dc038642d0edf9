# The batch's losses are summed by sum(d.values()), and that total is smoothed with its history.
import torch

smoothed = None
model = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(1000):
    out = model(torch.randn(8, 4))
    parts = {"fit": out.pow(2).mean(), "l1": out.abs().mean()}
    total = sum(parts.values())
    opt.zero_grad()
    total.backward()
    opt.step()
    smoothed = total if smoothed is None else smoothed.lerp(total, 0.1)  # expect: history-accumulated
