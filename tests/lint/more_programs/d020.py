# Usual convolutions and a wide MLP. Right.
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.squash = nn.Conv2d(512, 4096, kernel_size=7)
        self.mlp = nn.Sequential(nn.Linear(8192, 8192), nn.ReLU(), nn.Linear(8192, 4096))
