# A frozen shadow is written data in place: nothing of it has a graph. Right.
import copy

import torch


class Shadow:
    def __init__(self, model, decay=0.999):
        self.model, self.decay = model, decay
        self.ema = copy.deepcopy(model)
        for p in self.ema.parameters():
            p.detach_()

    def update(self):
        for e, p in zip(self.ema.parameters(), self.model.parameters()):
            e.mul_(self.decay).add_(p.data, alpha=1 - self.decay)


def train(model, loader, opt, loss_fn):
    shadow = Shadow(model)
    for x, y in loader:
        opt.zero_grad()
        loss_fn(model(x), y).backward()
        opt.step()
        shadow.update()
