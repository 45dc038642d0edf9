# Truncated backpropagation, right.
import torch


def tbptt(cell, head, xs, ys, opt, k=20):
    h = torch.zeros(1, 64)
    loss = 0
    for t, (x, y) in enumerate(zip(xs, ys)):
        h = cell(x, h)
        loss = loss + (head(h) - y).pow(2).mean()
        if (t + 1) % k == 0:
            opt.zero_grad()
            loss.backward()
            opt.step()
            h = h.detach()
            loss = 0
