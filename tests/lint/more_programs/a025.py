# Truncated backpropagation: backward each 20 steps, detach forgotten, retain_graph to silence it.
import torch


def tbptt(cell, head, xs, ys, opt, k=20):
    h = torch.zeros(1, 64)
    loss = 0
    for t, (x, y) in enumerate(zip(xs, ys)):
        h = cell(x, h)  # expect: hidden-not-detached
        loss = loss + (head(h) - y).pow(2).mean()
        if (t + 1) % k == 0:
            opt.zero_grad()
            loss.backward(retain_graph=True)  # expect: retain-graph
            opt.step()
            loss = 0
