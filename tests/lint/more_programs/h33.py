# Written after the rules were, in other styles than those they were made with.
import torch
import torch.nn as nn
class Encoder(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m
        self._cache = {}
    def encode(self, text):
        if text not in self._cache:
            self._cache[text] = self.m(text)  # expect: cache-unbounded
        return self._cache[text]
