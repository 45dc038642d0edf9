# Flattened feature map into a Linear.
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 3, padding=1))
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(128 * 256 * 256, 1024),  # expect: huge-linear
            nn.ReLU(),
            nn.Linear(1024, 10),
        )

    def forward(self, x):
        return self.classifier(self.features(x))
