# Cache keyed by a length, of constants. Right.
import functools

import torch


@functools.lru_cache(maxsize=32)
def causal_mask(n: int, device: str):
    return torch.triu(torch.ones(n, n, device=device), 1).bool()


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-1, -2)
        scores = scores.masked_fill(causal_mask(q.size(1), str(q.device)), float("-inf"))
        return scores.softmax(-1) @ v
