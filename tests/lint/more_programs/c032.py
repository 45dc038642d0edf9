# The same, and nobody clears.
import torch
from torch import nn


class MoE(nn.Module):
    def __init__(self, dim, n):
        super().__init__()
        self.gate = nn.Linear(dim, n)
        self.aux = []

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        self.aux.append(p.mean(0).pow(2).sum())  # expect: history-stored
        return p


moe = MoE(16, 4)
opt = torch.optim.Adam(moe.parameters())
for _ in range(100):
    loss = moe(torch.randn(8, 16)).pow(2).mean()
    loss = loss + 0.01 * moe.aux[-1]
    opt.zero_grad()
    loss.backward()
    opt.step()
