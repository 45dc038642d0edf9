# Contrastive learning with a memory bank written by index.
import torch
import torch.nn.functional as F
from torch import nn


class Bank(nn.Module):
    def __init__(self, n, dim):
        super().__init__()
        self.register_buffer("memory", F.normalize(torch.randn(n, dim)))

    def update(self, idx, feats):
        self.memory[idx] = 0.5 * self.memory[idx] + 0.5 * feats  # expect: history-accumulated


def train(net, bank, loader, opt):
    for idx, img in loader:
        z = F.normalize(net(img), dim=1)
        logits = z @ bank.memory.detach().t()
        loss = F.cross_entropy(logits / 0.07, idx)
        opt.zero_grad()
        loss.backward()
        opt.step()
        bank.update(idx, z)
