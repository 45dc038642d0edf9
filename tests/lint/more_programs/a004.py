# The meter unwraps what it is given.
import torch


class AverageMeter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, val, n=1):
        if torch.is_tensor(val):
            val = val.item()
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def train_epoch(loader, net, criterion, opt):
    losses = AverageMeter()
    for img, tgt in loader:
        loss = criterion(net(img), tgt)
        losses.update(loss, img.size(0))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return losses.avg
