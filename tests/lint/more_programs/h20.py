# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, optimizer, criterion):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
