# The same in windows. Right.
import torch
from torch import nn

T, WINDOW = 20000, 50
signal = torch.sin(torch.arange(T + 1) * 0.01)
rnn = nn.RNNCell(1, 32)
head = nn.Linear(32, 1)
opt = torch.optim.Adam(list(rnn.parameters()) + list(head.parameters()))
for epoch in range(50):
    h = torch.zeros(1, 32)
    for start in range(0, T, WINDOW):
        h = h.detach()
        loss = 0.0
        for t in range(start, start + WINDOW):
            h = rnn(signal[t].view(1, 1), h)
            loss = loss + (head(h) - signal[t + 1]).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
