# Written after the rules were, in other styles than those they were made with.
import torch
class Stats:
    def __init__(self): self.d = {}
    def log(self, **kw):
        for k, v in kw.items():
            self.d.setdefault(k, []).append(v)
def train(model, loader, opt, crit):
    s = Stats()
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad(); loss.backward(); opt.step()
        s.log(loss=loss)  # expect: history-stored
    return s
