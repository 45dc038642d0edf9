# Written after the rules were, in other styles than those they were made with.
import torch
from collections import deque
def train(model, loader, optimizer, criterion):
    recent = deque(maxlen=100)
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.item())
        if len(recent) == 100:
            print(sum(recent) / 100)
