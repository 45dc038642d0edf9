# Point cloud network: per-point features flattened into a Linear.
import torch
from torch import nn

NUM_POINTS = 16384


class Head(nn.Module):
    def __init__(self, feat=128, classes=40):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(NUM_POINTS * feat, 1024), nn.ReLU(), nn.Linear(1024, classes))  # expect: huge-linear

    def forward(self, x):
        return self.mlp(x.flatten(1))
