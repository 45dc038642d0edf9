# An endless generator. Right; so is cycling over a few names.
from itertools import cycle

import torch
from torch.utils.data import DataLoader


def forever(loader):
    while True:
        yield from loader


def train(model, dataset, opt, steps):
    batches = forever(DataLoader(dataset, batch_size=32, shuffle=True))
    colours = cycle(["r", "g", "b"])
    for step in range(steps):
        x, y = next(batches)
        loss = torch.nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(next(colours), loss.item())
