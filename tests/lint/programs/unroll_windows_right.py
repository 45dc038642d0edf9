# https://pytorch.org/docs/stable/notes/faq.html
import torch
import torch.nn as nn

series = torch.randn(50000, 1, 8)
cell = nn.GRUCell(8, 32)
head = nn.Linear(32, 8)
optimizer = torch.optim.Adam(list(cell.parameters()) + list(head.parameters()))

h = torch.zeros(1, 32)
for start in range(0, len(series) - 1, 35):
    h = h.detach()
    loss = 0.0
    for t in range(start, min(start + 35, len(series) - 1)):
        h = cell(series[t], h)
        loss = loss + (head(h) - series[t + 1]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
