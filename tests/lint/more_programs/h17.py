# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, optimizer, criterion):
    running = None
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = loss if running is None else 0.9 * running + 0.1 * loss  # expect: history-accumulated
    return running.item()
