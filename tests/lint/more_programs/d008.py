# Right: the buffer gets numbers.
import torch


def train(net, data, opt, steps):
    curve = torch.zeros(steps)
    for i, (x, y) in enumerate(data):
        loss = (net(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        curve[i] = loss.item()
    return curve
