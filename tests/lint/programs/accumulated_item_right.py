# https://github.com/google/brax/pull/152
import torch


def train(model, criterion, optimizer, data):
    total_loss = 0.0
    best = None
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * inputs.size(0)
        best = loss.detach() if best is None else torch.minimum(best, loss.detach())
    return total_loss / len(data), best
