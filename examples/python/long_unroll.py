"""A backward through a long series keeps the activations of every step of it.

    python long_unroll.py

Runs a recurrent cell over 400 steps plainly, and in 20 regions of 20 steps that are run again in backward. The
gradients are the same, bit for bit. (Detaching every so often also saves memory, and is another gradient.)
"""

import torch
from torch import nn

import lowtide

STEPS, WINDOW, WIDTH = 400, 20, 64

torch.manual_seed(0)
torch.set_num_threads(1)
cell = nn.GRUCell(8, WIDTH)
series = torch.randn(STEPS, 32, 8)


def window(part, h):
    for x in part:
        h = cell(x, h)
    return h


def plain():
    return window(series, torch.zeros(32, WIDTH))


def checkpointed():
    h = torch.zeros(32, WIDTH)
    for part in series.split(WINDOW):
        h = lowtide.checkpoint(window, part, h)
    return h


def gradients_and_peak(run):
    cell.zero_grad()
    meter = lowtide.meter()
    before = meter.live_bytes
    run().square().mean().backward()
    return [p.grad.clone() for p in cell.parameters()], meter.peak_bytes - before


if __name__ == "__main__":
    expected, whole = gradients_and_peak(plain)
    found, least = gradients_and_peak(checkpointed)
    print(f"plain         {whole >> 10:>6} KiB at the peak")
    print(f"checkpointed  {least >> 10:>6} KiB at the peak, gradients the same")
    assert all(a.equal(b) for a, b in zip(expected, found))
    assert least < whole / 4
