# Auxiliary losses collected by layers during forward, summed by the trainer, and cleared. Right.
import torch
from torch import nn


class MoE(nn.Module):
    def __init__(self, dim, n):
        super().__init__()
        self.gate = nn.Linear(dim, n)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(n))
        self.aux = []

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        self.aux.append(p.mean(0).pow(2).sum())
        return sum(p[..., i : i + 1] * e(x) for i, e in enumerate(self.experts))


moe = MoE(16, 4)
opt = torch.optim.Adam(moe.parameters())
for _ in range(100):
    moe.aux.clear()
    loss = moe(torch.randn(8, 16)).pow(2).mean()
    loss = loss + 0.01 * sum(moe.aux)
    opt.zero_grad()
    loss.backward()
    opt.step()
