# https://pytorch.org/tutorials/beginner/transfer_learning_tutorial.html
import copy
from collections import deque

import torch


def train(model, criterion, optimizer, loader, evaluate, epochs):
    best, best_weights = 0.0, copy.deepcopy(model.state_dict())
    last = deque(maxlen=3)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        score = evaluate(model)
        if score > best:
            best, best_weights = score, copy.deepcopy(model.state_dict())
        last.append({k: v.clone() for k, v in model.state_dict().items()})
        torch.save(model.state_dict(), f"epoch{epoch}.pt")
    model.load_state_dict(best_weights)
