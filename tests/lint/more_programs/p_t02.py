# After what a package does, or another kind than those before.
from dataclasses import dataclass
from torch import nn
@dataclass
class Config:
    channels: int = 256
    side: int = 224
class Net(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.conv = nn.Conv2d(3, cfg.channels, 3)
        self.fc = nn.Linear(cfg.channels * cfg.side ** 2, 1000)  # expect: huge-linear
