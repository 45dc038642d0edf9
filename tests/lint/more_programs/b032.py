# OOM: skip the batch. Right.
import torch


class Runner:
    def __init__(self, net, opt):
        self.net, self.opt = net, opt
        self.skipped = 0

    def step(self, batch):
        self.opt.zero_grad()
        self.net(batch).mean().backward()
        self.opt.step()

    def run(self, loader):
        for batch in loader:
            try:
                self.step(batch)
            except torch.cuda.OutOfMemoryError as e:
                print("skipping", str(e))
                self.skipped += 1
                self.opt.zero_grad(set_to_none=True)
                torch.cuda.empty_cache()
