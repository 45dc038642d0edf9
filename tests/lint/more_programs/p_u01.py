# After what a package does, or another kind than those before.
import torch
from collections import defaultdict
class Loop:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.stored = defaultdict(list)
    def step(self, x, y):
        loss = (self.model(x) - y).pow(2).mean()
        metrics = {"loss": loss, "x": loss * 2}
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        for k, v in metrics.items():
            metrics[k] = v.item()
        for k, v in metrics.items():
            self.stored[k].append(v)
    def run(self, loader):
        for x, y in loader:
            self.step(x, y)
