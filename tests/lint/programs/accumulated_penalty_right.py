# A question asked often in the forums; after no single report.
import torch


def train(model, criterion, optimizer, loader, weight=1e-4):
    for x, y in loader:
        loss = criterion(model(x), y)
        penalty = 0.0
        for p in model.parameters():
            penalty = penalty + p.pow(2).sum()
        loss = loss + weight * penalty
        optimizer.zero_grad()
        loss.backward()
        norm = 0.0
        for p in model.parameters():
            norm += p.grad.norm().item() ** 2
        optimizer.step()
        print(norm ** 0.5)
