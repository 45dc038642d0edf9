# lru_cache on a method that takes a tensor.
import functools

import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.freq = nn.Parameter(torch.randn(dim))

    @functools.lru_cache(maxsize=None)  # expect: cache-unbounded
    def angles(self, positions: torch.Tensor):
        return positions[:, None] * self.freq[None]

    def forward(self, x, positions):
        return x + self.angles(positions)
