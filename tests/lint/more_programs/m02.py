# Written after the rules were, in other styles than those they were made with.
import torch
models = {"net": torch.nn.Linear(4, 4)}
opt = torch.optim.SGD(models["net"].parameters(), 0.1)
it = iter(loader)
total = 0
for i in range(1000):
    x, y = next(it)
    loss = torch.nn.functional.mse_loss(models["net"](x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    total += loss  # expect: history-accumulated
