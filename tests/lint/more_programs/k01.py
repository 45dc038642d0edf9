# Written after the rules were, in other styles than those they were made with.
import torch
class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.clone() for k, v in model.state_dict().items()}
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k] = self.decay * self.shadow[k] + (1 - self.decay) * v
def train(model, loader, opt, crit):
    ema = EMA(model, 0.99)
    for x, y in loader:
        opt.zero_grad()
        crit(model(x), y).backward()
        opt.step()
        ema.update(model)
