"""A linear layer over a flattened map: weights, gradients and the optimizer's moments are what memory goes to.

    python large_linear.py

No budget can drop those. It says so, with the bytes by kind and the smallest budget; the same network with a pooled
map trains inside a budget that refuses the first.
"""

import torch
from torch import nn

import lowtide

torch.manual_seed(0)
torch.set_num_threads(1)
images = torch.randn(16, 3, 32, 32)


def flattened():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 32 * 32, 256))


def pooled():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(16 * 7 * 7, 256))


def train(make):
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss = model(images).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def kinds_of(details):
    """The bytes by kind that a refusal carries, for people."""
    kinds = {name[5:-6]: count for name, count in details.items() if name.startswith("live_") and name != "live_bytes"}
    return ", ".join(f"{kind} {count >> 20} MiB" for kind, count in kinds.items() if count >> 20)


if __name__ == "__main__":
    try:
        with lowtide.budget("68MiB"):
            train(flattened)
        raise AssertionError("this does not fit")
    except lowtide.BudgetError as error:
        print(f"flattened: refused with {kinds_of(error.details)}")
        print(f"           needs at least {error.details['smallest_budget_bytes'] / 2**20:.2f} MiB")
    with lowtide.budget("68MiB") as budget:
        loss = train(pooled)
    print(f"pooled:    loss {loss:.4f}, peak {budget.report()['peak_bytes'] / 2**20:.1f} MiB")
