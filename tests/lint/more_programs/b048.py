# Curriculum: difficulty from the loss of the last batch; compared, not kept. Right.
import torch


def train(net, loader, opt, ce):
    previous = None
    level = 0
    for x, y in loader:
        loss = ce(net(x, level), y)
        if previous is not None and loss < previous:
            level += 1
        opt.zero_grad()
        loss.backward()
        opt.step()
        previous = loss.detach()
