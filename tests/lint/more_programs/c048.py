# Infinite data by cycle over a prefetching loader variable in a class.
import itertools

import torch


class Loop:
    def __init__(self, train_loader, net, opt):
        self.batches = itertools.cycle(train_loader)  # expect: cycle-caches-loader
        self.net, self.opt = net, opt

    def step(self):
        x, y = next(self.batches)
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()
