# A stateful module keeps its state on self over calls.
import torch
from torch import nn


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 16)
        self.head = nn.Linear(16, 1)
        self.h = None

    def forward(self, x):
        if self.h is None:
            self.h = torch.zeros(x.size(0), 16)
        self.h = self.cell(x, self.h)  # expect: hidden-not-detached
        return self.head(self.h)


model = Stateful()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    x = torch.randn(32, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
