# An LSTM is given a recording of 48,000 samples at once.
import torch
from torch import nn

lstm = nn.LSTM(1, 64, batch_first=True)
head = nn.Linear(64, 1)
opt = torch.optim.Adam([*lstm.parameters(), *head.parameters()])
for step in range(1000):
    wave = torch.randn(8, 48000, 1)
    out, _ = lstm(wave)  # expect: long-unroll
    loss = head(out).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
