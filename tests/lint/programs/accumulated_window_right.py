# A question asked often in the forums; after no single report.
import torch


def train(model, criterion, optimizer, loader, k=4):
    pending = 0
    for i, (x, y) in enumerate(loader):
        pending = pending + criterion(model(x), y) / k
        if (i + 1) % k == 0:
            optimizer.zero_grad()
            pending.backward()
            optimizer.step()
            pending = 0
