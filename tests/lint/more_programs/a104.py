# A norm layer keeps a running mean with its graph.
import torch
from torch import nn


class RunningNorm(nn.Module):
    def __init__(self, dim, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.scale = nn.Parameter(torch.ones(dim))
        self.running_mean = torch.zeros(dim)

    def forward(self, x):
        mean = x.mean(0)
        self.running_mean = (1 - self.momentum) * self.running_mean + self.momentum * mean  # expect: history-accumulated
        return (x - self.running_mean.detach()) * self.scale


net = nn.Sequential(nn.Linear(8, 16), RunningNorm(16), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters())
for _ in range(1000):
    opt.zero_grad()
    net(torch.randn(32, 8)).pow(2).mean().backward()
    opt.step()
