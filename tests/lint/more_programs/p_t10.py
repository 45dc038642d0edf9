# After what a package does, or another kind than those before.
import torch
class Loop:
    def __init__(self, forward_fn, opt):
        self.f, self.opt = forward_fn, opt
    def run(self, loader):
        for x, y in loader:
            soft = self.f(x).detach()  # expect: graph-not-needed
            loss = (self.f(x) - soft * y).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
