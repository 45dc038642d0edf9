# https://github.com/pytorch/pytorch/issues/4661
import torch


def train(model, criterion, optimizer, loader):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward(create_graph=True)  # expect: create-graph-backward leak
        norm = sum(p.grad.pow(2).sum() for p in model.parameters())
        norm.backward()
        optimizer.step()
