# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit, writer):
    step = 0
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        writer.add_scalar("loss", loss, step)
        step += 1
