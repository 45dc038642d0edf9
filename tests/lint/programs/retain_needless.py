# https://github.com/jlamprou/Infini-Attention/issues/3
import torch


def train(model, criterion, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward(retain_graph=True)  # expect: retain-graph peak
        optimizer.step()
