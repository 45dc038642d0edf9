# Right: the same keyed dict of numbers through tolist().
import torch


def train(net, loader, opt):
    hardness = {}
    for idx, x, y in loader:
        each = torch.nn.functional.cross_entropy(net(x), y, reduction="none")
        opt.zero_grad()
        each.mean().backward()
        opt.step()
        hardness.update(zip(idx.tolist(), each.tolist()))
    return hardness
