# https://github.com/pytorch/pytorch/pull/112301
from functools import lru_cache

import torch

_positions = {}
_recent = {}


@lru_cache(maxsize=None)
def causal_mask(n: int, device: str):
    return torch.tril(torch.ones(n, n, device=device))


def positions(x):
    n = x.size(1)
    if n not in _positions:
        _positions[n] = torch.arange(n, device=x.device)
    return _positions[n]


def features(encoder, path):
    if path not in _recent:
        if len(_recent) > 32:
            _recent.pop(next(iter(_recent)))
        with torch.no_grad():
            _recent[path] = encoder(torch.load(path))
    return _recent[path]
