# https://github.com/bytedance/UNO/issues/64
import itertools

import torch
from torch.utils.data import DataLoader


def main(dataset, model, optimizer, steps):
    dataloader = DataLoader(dataset, batch_size=1, shuffle=True)
    dataloader = itertools.cycle(dataloader)  # expect: cycle-caches-loader leak
    for step in range(steps):
        batch = next(dataloader)
        optimizer.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
