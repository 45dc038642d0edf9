# Written after the rules were, in other styles than those they were made with.
import torch
class SWA:
    def __init__(self, model):
        self.avg = [p.detach().clone() for p in model.parameters()]
        self.n = 0
    def update(self, model):
        self.n += 1
        for i, p in enumerate(model.parameters()):
            self.avg[i] = self.avg[i] + (p - self.avg[i]) / self.n  # expect: update-with-grad
def train(model, loader, opt, crit):
    swa = SWA(model)
    for x, y in loader:
        opt.zero_grad()
        crit(model(x), y).backward()
        opt.step()
        swa.update(model)
