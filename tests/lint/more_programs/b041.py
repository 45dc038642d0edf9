# Language model head onto a vocabulary of usual size, tied. Right.
import torch
from torch import nn


class LM(nn.Module):
    def __init__(self, vocab_size=128256, dim=4096):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids):
        return self.lm_head(self.embed(ids))
