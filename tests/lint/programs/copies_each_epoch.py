# A question asked often in the forums; after no single report.
import copy

import torch


def train(model, criterion, optimizer, loader, epochs):
    snapshots = []
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        snapshots.append(copy.deepcopy(model.state_dict()))  # expect: copies-accumulate leak
    return snapshots
