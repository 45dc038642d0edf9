# https://pytorch.org/docs/stable/notes/faq.html
import torch
import torch.nn as nn

series = torch.randn(50000, 1, 8)
cell = nn.GRUCell(8, 32)
head = nn.Linear(32, 8)
optimizer = torch.optim.Adam(list(cell.parameters()) + list(head.parameters()))

for epoch in range(10):
    h = torch.zeros(1, 32)
    loss = 0.0
    for t in range(len(series) - 1):  # expect: long-unroll peak
        h = cell(series[t], h)
        loss = loss + (head(h) - series[t + 1]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
