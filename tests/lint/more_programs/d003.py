# Welford over numbers. Right.
import torch


class Welford:
    def __init__(self):
        self.n, self.mean, self.m2 = 0, 0.0, 0.0

    def push(self, x):
        self.n += 1
        delta = x - self.mean
        self.mean = self.mean + delta / self.n
        self.m2 = self.m2 + delta * (x - self.mean)


def train(net, data, opt, mse):
    stats = Welford()
    for x, y in data:
        err = mse(net(x), y)
        opt.zero_grad()
        err.backward()
        opt.step()
        stats.push(err.item())
    return stats.mean
