# Weight normalisation of a classifier done on the parameter, right through .data.
import torch


def train(net, loader, opt, ce):
    for x, y in loader:
        opt.zero_grad()
        ce(net(x), y).backward()
        opt.step()
        net.fc.weight.data = torch.nn.functional.normalize(net.fc.weight.data, dim=1)
