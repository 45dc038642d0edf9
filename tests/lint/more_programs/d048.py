# Long loop without state from step to step, backward each step. Right.
import torch


def train(net, sampler, opt, crit):
    for step in range(100000):
        x, y = sampler()
        loss = crit(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
