# OOM recovery in a loop: the handler calls the same step again with half of the batch.
import torch


class Runner:
    def __init__(self, net, opt):
        self.net, self.opt = net, opt

    def step(self, batch):
        self.opt.zero_grad()
        self.net(batch).mean().backward()
        self.opt.step()

    def run(self, loader):
        for batch in loader:
            try:
                self.step(batch)
            except RuntimeError as e:
                if "CUDA out of memory" not in str(e):
                    raise
                torch.cuda.empty_cache()
                a, b = batch.chunk(2)
                self.step(a)  # expect: exception-holds-frame
                self.step(b)
