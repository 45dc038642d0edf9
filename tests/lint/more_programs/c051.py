# LeNet for large images: the size is given by the flattened conv output.
import torch
from torch import nn

IMAGE = 512


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        side = IMAGE // 2
        self.fc1 = nn.Linear(64 * side * side, 120)  # expect: huge-linear
        self.fc2 = nn.Linear(120, 10)
