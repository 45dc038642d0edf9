# Right: only the last map, detached.
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.last_map = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        a = (q @ k.transpose(1, 2)).softmax(-1)
        self.last_map = a.detach()
        return a @ v


att = Attention(32)
opt = torch.optim.Adam(att.parameters())
for _ in range(100):
    loss = att(torch.randn(2, 10, 32)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
