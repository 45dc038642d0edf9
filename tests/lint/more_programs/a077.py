# Dictionary of losses: summed for backward, kept in a defaultdict with history.
from collections import defaultdict

import torch


def train(detector, loader, opt):
    epoch_stats = defaultdict(list)
    for images, targets in loader:
        loss_dict = detector(images, targets)
        total = sum(loss_dict.values())
        opt.zero_grad()
        total.backward()
        opt.step()
        for k, v in loss_dict.items():
            epoch_stats[k].append(v)  # expect: history-stored
    return {k: sum(v) / len(v) for k, v in epoch_stats.items()}
