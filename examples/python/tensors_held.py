"""A tensor that the program holds is never dropped; the report names the line that made it.

    python tensors_held.py

Trains a step that keeps its intermediate results in a list "to look at later", and one that keeps numbers.
"""

import torch
from torch import nn

import lowtide

torch.manual_seed(0)
torch.set_num_threads(1)
layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(8)])
data = torch.randn(1024, 512)


def step(look):
    seen = []
    h = data
    for layer in layers:
        h = torch.tanh(layer(h))
        seen.append(look(h))
    h.square().mean().backward()
    for layer in layers:
        layer.zero_grad()
    return seen


def held_after(look):
    with lowtide.budget("1GiB") as budget:
        seen = step(look)
        report = budget.report()
    return seen, report


if __name__ == "__main__":
    # Kept whole: 2 MiB for each layer, which no budget may take away.
    seen, report = held_after(lambda h: h)
    for hold in report["program_holds"]:
        print(f"{hold['bytes'] >> 10:>6} KiB in {hold['tensors']:>2} tensors made by {hold['op']} at {hold['line']}")
    whole = report["program_bytes"]
    del seen

    # Kept as numbers.
    seen, report = held_after(lambda h: h.std().item())
    print(f"{whole >> 10} KiB held before, {report['program_bytes'] >> 10} KiB with numbers in the list")
    assert report["program_bytes"] <= whole - 8 * (2 << 20)
