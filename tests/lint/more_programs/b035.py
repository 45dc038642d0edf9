# Semi-supervised: the smaller loader is cycled beside the larger one.
import itertools

import torch
from torch.utils.data import DataLoader


def main(sup, unsup, model, opt, ce, consistency):
    sup_loader = DataLoader(sup, 16, shuffle=True)
    unsup_loader = DataLoader(unsup, 64, shuffle=True)
    pairs = zip(unsup_loader, itertools.cycle(sup_loader))  # expect: cycle-caches-loader
    for u, (x, y) in pairs:
        loss = ce(model(x), y) + consistency(model(u))
        opt.zero_grad()
        loss.backward()
        opt.step()
