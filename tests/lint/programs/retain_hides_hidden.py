# https://github.com/GBLin5566/toward-controlled-generation-of-text-pytorch/issues/9
import torch
import torch.nn as nn

lstm = nn.LSTM(16, 32)
head = nn.Linear(32, 1)
optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()])


def train(loader):
    state = (torch.zeros(1, 8, 32), torch.zeros(1, 8, 32))
    for x, y in loader:
        out, state = lstm(x, state)  # expect: hidden-not-detached leak
        loss = nn.functional.mse_loss(head(out), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # expect: retain-graph leak
        optimizer.step()
