# A question asked often in the forums; after no single report.
import torch
import torch.nn as nn


class MultiHead(nn.Module):
    def __init__(self, trunk, heads):
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleList(heads)

    def forward(self, x):
        h = self.trunk(x)
        return [head(h) for head in self.heads]


def train(model, criteria, optimizer, loader):
    history = []
    for x, ys in loader:
        losses = []
        for out, y, criterion in zip(model(x), ys, criteria):
            losses.append(criterion(out, y))
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
        history.append([loss.item() for loss in losses])
    return history
