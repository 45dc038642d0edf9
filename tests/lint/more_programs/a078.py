# Counter of reduced, detached losses. Right.
from collections import Counter

import torch


def train(detector, loader, opt):
    stats = Counter()
    for images, targets in loader:
        loss_dict = detector(images, targets)
        total = sum(loss for loss in loss_dict.values())
        opt.zero_grad()
        total.backward()
        opt.step()
        stats.update({k: v.item() for k, v in loss_dict.items()})
    return stats
