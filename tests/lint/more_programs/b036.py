# An iterator that is made again at StopIteration. Right.
import torch
from torch.utils.data import DataLoader


def main(sup, unsup, model, opt, ce, consistency):
    sup_loader = DataLoader(sup, 16, shuffle=True)
    it = iter(sup_loader)
    for u in DataLoader(unsup, 64, shuffle=True):
        try:
            x, y = next(it)
        except StopIteration:
            it = iter(sup_loader)
            x, y = next(it)
        loss = ce(model(x), y) + consistency(model(u))
        opt.zero_grad()
        loss.backward()
        opt.step()
