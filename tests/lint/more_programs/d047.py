# A Monte-Carlo estimate over many forward passes in one backward of a thousand recurrent steps.
import torch
from torch import nn

STEPS = 4096


def loss_over_series(cell, readout, series):
    h = torch.zeros(1, cell.hidden_size)
    total = 0
    for t in range(STEPS):  # expect: long-unroll
        h = cell(series[t], h)
        total = total + readout(h).pow(2).mean()
    return total


def train(cell, readout, data, opt):
    for series in data:
        loss = loss_over_series(cell, readout, series)
        opt.zero_grad()
        loss.backward()
        opt.step()
