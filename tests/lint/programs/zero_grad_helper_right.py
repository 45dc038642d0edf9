# A question asked often in the forums; after no single report.
import torch


def clear(model):
    for p in model.parameters():
        p.grad = None


def train(model, criterion, optimizer, scheduler, loader, accumulate=8):
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            scheduler.step()
            clear(model)
