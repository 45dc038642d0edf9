# A question asked often in the forums; after no single report.
import torch
import torch.nn as nn


def train(cell, head, criterion, optimizer, series, k1=20):
    h = torch.zeros(1, 64)
    loss = 0
    for t in range(len(series) - 1):
        h = cell(series[t], h)  # expect: hidden-not-detached leak
        loss = loss + criterion(head(h), series[t + 1])
        if (t + 1) % k1 == 0:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss = 0
