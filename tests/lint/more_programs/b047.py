# A window of the last 100 losses is bounded, and yet keeps 100 graphs.
# What unknown code returned has history only if a backward shows it.
from collections import deque

import torch


def train(net, loader, opt, ce, aux):
    window = deque(maxlen=100)
    for x, y in loader:
        out = net(x)
        loss = ce(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        window.append(aux(out))  # missed: history-stored
        print(sum(window) / len(window))
