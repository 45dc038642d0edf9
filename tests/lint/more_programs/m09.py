# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit):
    hidden = model.init_hidden()
    for x, y in loader:
        hidden = [h.data for h in hidden]
        out, hidden = model(x, hidden)
        loss = crit(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
