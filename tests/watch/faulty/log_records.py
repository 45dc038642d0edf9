# graph_kept, held by: handler.buffer[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


import logging
import logging.handlers

log = logging.Logger("train")
handler = logging.handlers.BufferingHandler(1000)
log.addHandler(handler)
for i in range(12):
    x, y = batch()
    out = model(x)
    loss = mse(out, y)  # also here
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.info("loss %s", loss)  # mended: log.info("loss %s", loss.item())
