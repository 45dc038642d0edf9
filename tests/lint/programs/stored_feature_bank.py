# A question asked often in the forums; after no single report.
import torch
import torch.nn as nn
import torch.nn.functional as F


class Contrast(nn.Module):
    def __init__(self, encoder, dim=128, size=4096):
        super().__init__()
        self.encoder = encoder
        self.size = size
        self.ptr = 0
        self.register_buffer("bank", torch.randn(size, dim))

    def forward(self, x, pairs):
        z = F.normalize(self.encoder(x), dim=1)
        logits = z @ self.bank.t()
        self.bank[self.ptr : self.ptr + len(z)] = z  # expect: history-stored creep
        self.ptr = (self.ptr + len(z)) % self.size
        return F.cross_entropy(logits, pairs)


def train(model, loader, optimizer):
    for x, pairs in loader:
        loss = model(x, pairs)
        optimizer.zero_grad()
        loss.backward(retain_graph=False)
        optimizer.step()
