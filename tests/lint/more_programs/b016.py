# Right: one slot.
import copy

import torch


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.bad, self.best, self.state = patience, 0, None, None

    def __call__(self, value, model):
        if self.best is None or value < self.best:
            self.best, self.bad = value, 0
            self.state = copy.deepcopy(model.state_dict())
        else:
            self.bad += 1
        return self.bad >= self.patience


def fit(model, loader, opt, loss_fn):
    stop = EarlyStopping(5)
    for epoch in range(100):
        for x, y in loader:
            opt.zero_grad()
            loss_fn(model(x), y).backward()
            opt.step()
        if stop(epoch, model):
            break
