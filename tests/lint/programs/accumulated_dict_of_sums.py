# https://github.com/JIA-Lab-research/DecoupleNet/issues/3
from collections import defaultdict

import torch


def train_one_epoch(model, loader, optimizer):
    sums = defaultdict(float)
    for images, targets in loader:
        losses = model(images, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, value in losses.items():
            sums[name] += value  # expect: history-accumulated creep
    return {name: total / len(loader) for name, total in sums.items()}
