# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit):
    h, c = model.init_hidden()
    for x, y in loader:
        out, (h, c) = model(x, (h, c))  # expect: hidden-not-detached
        loss = crit(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
