# https://github.com/DeepLearnPhysics/lartpc_mlreco3d/pull/77
import itertools

import torch
from torch.utils.data import DataLoader


def cycle(loader):
    while True:
        for batch in loader:
            yield batch


def main(dataset, model, optimizer, steps):
    batches = cycle(DataLoader(dataset, batch_size=4))
    colours = itertools.cycle(["red", "green", "blue"])
    for step in range(steps):
        optimizer.zero_grad()
        model(next(batches)).mean().backward()
        optimizer.step()
        print(next(colours))
