# Written after the rules were, in other styles than those they were made with.
import torch
import torch.nn as nn
lstm = nn.LSTM(1, 32, batch_first=True)
head = nn.Linear(32, 1)
opt = torch.optim.Adam(list(lstm.parameters()) + list(head.parameters()))
x = torch.randn(4, 100000, 1)
for epoch in range(10):
    out, _ = lstm(x)  # expect: long-unroll
    loss = head(out).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
