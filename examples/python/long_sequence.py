"""Exact gradients through a sequence of any length, in memory that is chosen.

    python long_sequence.py

The loop keeps the graph of every step; lowtide.scan keeps a few states and runs the steps between them again in
backward. The gradients are the same, bit for bit. truncated_bptt is there where exact ones are not wanted.
"""

import torch
from torch import nn

import lowtide

STEPS, WIDTH = 2000, 32

torch.manual_seed(0)
torch.set_num_threads(1)
cell, head = nn.LSTMCell(4, WIDTH), nn.Linear(WIDTH, 4)
time = torch.arange(STEPS + 1.0)[:, None, None]
series = torch.sin(0.1 * time + torch.rand(8, 4) * 6) + 0.1 * torch.randn(STEPS + 1, 8, 4)


def step(state, part):
    x, target = part
    state = cell(x, state)
    return state, (head(state[0]) - target).square().mean()


def first_state():
    return torch.zeros(8, WIDTH), torch.zeros(8, WIDTH)


def loop():
    state, losses = first_state(), []
    for part in zip(series[:-1].unbind(0), series[1:].unbind(0)):
        state, loss = step(state, part)
        losses.append(loss)
    return torch.stack(losses).mean()


def scan():
    report = lowtide.ScanReport()
    _, losses = lowtide.scan(step, first_state(), (series[:-1], series[1:]), memory="2MiB", report=report)
    return losses.mean(), report


def gradients_and_peak(run):
    cell.zero_grad()
    head.zero_grad()
    meter = lowtide.meter()
    before = meter.live_bytes
    result = run()
    loss, report = result if isinstance(result, tuple) else (result, None)
    loss.backward()
    return [p.grad.clone() for p in (*cell.parameters(), *head.parameters())], meter.peak_bytes - before, report


def truncated():
    optimizer = torch.optim.Adam((*cell.parameters(), *head.parameters()), lr=0.01)
    means = []
    for losses, _ in lowtide.truncated_bptt(step, first_state(), (series[:-1], series[1:]), window=50):
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        means.append(losses.mean().item())
    return means


if __name__ == "__main__":
    expected, whole, _ = gradients_and_peak(loop)
    found, least, report = gradients_and_peak(scan)
    print(f"loop  {whole >> 10:>6} KiB at the peak")
    print(f"scan  {least >> 10:>6} KiB at the peak, gradients the same")
    print(report)
    assert all(a.equal(b) for a, b in zip(expected, found))
    assert least < whole / 8
    means = truncated()
    print(f"truncated: loss {means[0]:.3f} in the first window, {means[-1]:.3f} in the last")
    assert means[-1] < means[0]
