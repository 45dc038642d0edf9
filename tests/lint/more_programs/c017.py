# Base class runs test() under no_grad; the subclass's step is right.
import torch


class BaseRunner:
    def test(self, loader):
        self.net.eval()
        with torch.no_grad():
            for batch in loader:
                self.test_step(batch)
        self.net.train()

    def test_step(self, batch):
        raise NotImplementedError


class DepthRunner(BaseRunner):
    def __init__(self, net):
        self.net = net
        self.errors = []

    def test_step(self, batch):
        pred = self.net(batch["rgb"])
        self.errors.append((pred - batch["depth"]).abs().mean())
