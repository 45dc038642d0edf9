# TensorBoard-like logger of the project accumulates what it is given until it is flushed; never flushed.
import torch


class Logger:
    def __init__(self):
        self.data = {}

    def log(self, name, value):
        self.data.setdefault(name, []).append(value)


def train(net, loader, opt, ce):
    logger = Logger()
    for x, y in loader:
        loss = ce(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        logger.log("train/loss", loss)  # expect: history-stored
    return logger
