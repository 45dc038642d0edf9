# After what a package does, or another kind than those before.
import argparse
import torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--seq-len", type=int, default=5000)
args = parser.parse_args()
cell = nn.GRUCell(1, 32)
opt = torch.optim.Adam(cell.parameters())
for epoch in range(5):
    h = torch.zeros(1, 32)
    loss = 0
    for t in range(args.seq_len):  # expect: long-unroll
        h = cell(torch.randn(1, 1), h)
        loss = loss + h.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
