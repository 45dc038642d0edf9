# https://pytorch.org/docs/stable/notes/faq.html
import torch


def train(model, criterion, optimizer, data):
    total_loss = 0
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total_loss += loss  # expect: history-accumulated creep
    return total_loss / len(data)
