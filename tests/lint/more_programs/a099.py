# functools.partial and lambda losses; smoothed value kept in an attribute.
import functools

import torch
import torch.nn.functional as F


class Loop:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), 0.1)
        self.loss_fn = functools.partial(F.cross_entropy, label_smoothing=0.1)
        self.smooth = 0.0

    def run(self, loader):
        for x, y in loader:
            loss = self.loss_fn(self.net(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.smooth = self.smooth * 0.99 + loss * 0.01  # expect: history-accumulated
