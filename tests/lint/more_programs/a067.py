# Copies of the model for each epoch.
from copy import deepcopy

import torch


def train(model, loader, opt, loss_fn, epochs):
    checkpoints = {}
    for epoch in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            loss_fn(model(x), y).backward()
            opt.step()
        checkpoints[f"epoch_{epoch}"] = deepcopy(model)  # expect: copies-accumulate
    return checkpoints
