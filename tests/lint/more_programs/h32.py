# Written after the rules were, in other styles than those they were made with.
import torch
from functools import cache
@cache
def rope(dim: int, length: int):
    f = 1.0 / (10000 ** (torch.arange(0, dim, 2) / dim))
    return torch.outer(torch.arange(length), f)
