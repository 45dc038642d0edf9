# Written after the rules were, in other styles than those they were made with.
from itertools import cycle
import torch
def train(labeled_loader, unlabeled_loader, model, opt, crit):
    for (x, y), u in zip(cycle(labeled_loader), unlabeled_loader):  # expect: cycle-caches-loader
        loss = crit(model(x), y) + model(u).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
