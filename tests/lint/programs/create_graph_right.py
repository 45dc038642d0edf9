# https://github.com/pytorch/pytorch/issues/4661
import torch


def train(model, criterion, optimizer, loader):
    for x, y in loader:
        loss = criterion(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        penalty = sum(g.pow(2).sum() for g in grads)
        optimizer.zero_grad()
        (loss + 0.1 * penalty).backward()
        optimizer.step()
