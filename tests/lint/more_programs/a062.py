# cycle over a loader for a fixed number of steps.
from itertools import cycle, islice

import torch
from torch.utils.data import DataLoader


def train(model, dataset, opt, steps):
    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=4)
    for x, y in islice(cycle(loader), steps):  # expect: cycle-caches-loader
        loss = torch.nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
