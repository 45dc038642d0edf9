# VGG's classifier and a pooled head are usual sizes. Right.
from torch import nn


class Net(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 512, 3), nn.AdaptiveAvgPool2d(7))
        self.classifier = nn.Sequential(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Linear(4096, classes))
        self.emb = nn.Embedding(50257, 768)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))
