# Positional tables keyed by length and device. Right.
import torch

_tables = {}


def table(n, dim, device):
    key = (n, dim, device)
    if key not in _tables:
        pos = torch.arange(n, device=device)[:, None]
        _tables[key] = torch.sin(pos / 10000 ** (torch.arange(dim, device=device) / dim))
    return _tables[key]
