# Right: written under no_grad.
import torch
import torch.nn.functional as F
from torch import nn


class Bank(nn.Module):
    def __init__(self, n, dim):
        super().__init__()
        self.register_buffer("memory", F.normalize(torch.randn(n, dim)))

    @torch.no_grad()
    def update(self, idx, feats):
        self.memory[idx] = 0.5 * self.memory[idx] + 0.5 * feats


def train(net, bank, loader, opt):
    for idx, img in loader:
        z = F.normalize(net(img), dim=1)
        loss = F.cross_entropy(z @ bank.memory.t() / 0.07, idx)
        opt.zero_grad()
        loss.backward()
        opt.step()
        bank.update(idx, z)
