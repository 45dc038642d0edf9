# torch.zeros buffer filled by index with losses.
import torch


def train(net, data, opt, steps):
    curve = torch.zeros(steps)
    for i, (x, y) in enumerate(data):
        loss = (net(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        curve[i] = loss  # expect: history-stored
    return curve
