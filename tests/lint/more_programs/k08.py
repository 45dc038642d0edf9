# Written after the rules were, in other styles than those they were made with.
import torch
from ignite.engine import Engine
def make(model, opt, crit):
    def update(engine, batch):
        model.train()
        opt.zero_grad()
        x, y = batch
        loss = crit(model(x), y)
        loss.backward()
        opt.step()
        return loss.item()
    return Engine(update)
