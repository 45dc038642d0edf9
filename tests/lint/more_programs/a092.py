# Perceptual loss: the feature network must carry gradients to its input. Right.
import torch
from torch import nn
from torchvision.models import vgg16


class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.vgg = vgg16(weights="DEFAULT").features[:16].eval()
        for p in self.vgg.parameters():
            p.requires_grad = False

    def forward(self, a, b):
        return nn.functional.l1_loss(self.vgg(a), self.vgg(b))


def train(net, loader, opt):
    percep = Perceptual()
    for lo, hi in loader:
        loss = percep(net(lo), hi)
        opt.zero_grad()
        loss.backward()
        opt.step()
