# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit, queue):
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        queue.put(loss.detach())
