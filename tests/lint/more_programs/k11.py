# Written after the rules were, in other styles than those they were made with.
import torch
import torch.nn as nn
class Big(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(200000, 4096))  # expect: huge-linear
    def forward(self, x):
        return x @ self.w
