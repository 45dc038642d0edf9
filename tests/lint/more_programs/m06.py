# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit):
    def closure_losses():
        for x, y in loader:
            loss = crit(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            yield loss
    return float(torch.stack([l.detach() for l in closure_losses()]).mean())
