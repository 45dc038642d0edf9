# An RNN over one long series in one backward.
import torch
from torch import nn

T = 20000
signal = torch.sin(torch.arange(T + 1) * 0.01)
rnn = nn.RNNCell(1, 32)
head = nn.Linear(32, 1)
opt = torch.optim.Adam(list(rnn.parameters()) + list(head.parameters()))
for epoch in range(50):
    h = torch.zeros(1, 32)
    loss = 0.0
    for t in range(T):  # expect: long-unroll
        h = rnn(signal[t].view(1, 1), h)
        loss = loss + (head(h) - signal[t + 1]).pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
