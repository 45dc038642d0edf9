# A stateful module that is reset for every sequence. Right.
import torch
from torch import nn


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 16)
        self.head = nn.Linear(16, 1)
        self.h = None

    def reset(self, n):
        self.h = torch.zeros(n, 16)

    def forward(self, x):
        self.h = self.cell(x, self.h)
        return self.head(self.h)


model = Stateful()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    model.reset(32)
    seq = torch.randn(10, 32, 8)
    loss = 0
    for x in seq:
        loss = loss + model(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
