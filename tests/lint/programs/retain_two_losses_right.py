# https://discuss.pytorch.org/t/what-does-the-parameter-retain-graph-mean/1357
import torch


def train(model, loss_a, loss_b, optimizer, loader):
    for x, y, z in loader:
        features = model(x)
        first = loss_a(features, y)
        second = loss_b(features, z)
        optimizer.zero_grad()
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()
