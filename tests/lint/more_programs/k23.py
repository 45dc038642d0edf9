# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit):
    prev = None
    for x, y in loader:
        out = model(x)
        loss = crit(out, y)
        if prev is not None:
            loss = loss + 0.1 * (out - prev).pow(2).mean()  # expect: hidden-not-detached
        opt.zero_grad()
        loss.backward()
        opt.step()
        prev = out
