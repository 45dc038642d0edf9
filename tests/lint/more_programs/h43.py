# Written after the rules were, in other styles than those they were made with.
import torch
import torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 512, 3), nn.ReLU())
        self.head = nn.Linear(in_features=512 * 128 * 128, out_features=256)  # expect: huge-linear
        self.proj = nn.Parameter(torch.empty(768, 768))
    def forward(self, x):
        return self.head(torch.flatten(self.features(x), 1))
