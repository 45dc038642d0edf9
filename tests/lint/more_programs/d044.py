# Saved to disk by epoch; a queue of at most three paths. Right.
from collections import deque

import torch


def fit(net, loader, opt, crit, epochs):
    kept = deque(maxlen=3)
    for epoch in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            crit(net(x), y).backward()
            opt.step()
        path = f"ckpt_{epoch}.pt"
        torch.save({"net": net.state_dict(), "epoch": epoch}, path)
        kept.append(path)
