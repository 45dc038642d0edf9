"""A sum that outlives the loop keeps the history of all that was added to it.

    python history_accumulated.py
    lowtide lint history_accumulated.py      finds the line, and `--fix` mends it

Prints how many bytes of tensors one pass leaves behind, written both ways.
"""

import torch
from torch import nn

import lowtide

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(256, 256), torch.randn(256, 256)) for _ in range(8)]


def train_keeping_history():
    total_error = 0.0
    for x, y in batches:
        out = model(x)
        optimizer.zero_grad()
        (out - y).square().mean().backward()
        optimizer.step()
        total_error += (out - y).abs().mean()  # holds the graph of every step's error
    return total_error


def train():
    total_error = 0.0
    for x, y in batches:
        out = model(x)
        optimizer.zero_grad()
        (out - y).square().mean().backward()
        optimizer.step()
        total_error += (out - y).abs().mean().item()
    return total_error


def bytes_left_by(loop):
    loop()  # the gradients are there from now on
    meter = lowtide.meter()
    before = meter.live_bytes
    total_error = loop()  # alive while the bytes are read
    return meter.live_bytes - before


if __name__ == "__main__":
    kept, left = bytes_left_by(train_keeping_history), bytes_left_by(train)
    print(f"+= error         {kept:>8} bytes of tensors left after {len(batches)} steps")
    print(f"+= error.item()  {left:>8}")
    assert kept >= len(batches) * 256 * 256 * 4 > left
