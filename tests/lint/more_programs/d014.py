# GRU over windows of a stream; "h = h.data" is only done at the epoch's end.
import torch


def train(gru, head, stream, opt, epochs):
    h = torch.zeros(1, 32, 64)
    for epoch in range(epochs):
        for x, y in stream:
            out, h = gru(x, h)  # expect: hidden-not-detached
            loss = (head(out) - y).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        h = h.data
