# An AverageMeter that is given the tensor.
import torch


class AverageMeter:
    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def train_epoch(loader, net, criterion, opt):
    losses = AverageMeter("loss")
    top1 = AverageMeter("acc")
    for step, (img, tgt) in enumerate(loader):
        logits = net(img)
        loss = criterion(logits, tgt)
        acc = (logits.argmax(1) == tgt).float().mean()
        losses.update(loss, img.size(0))  # expect: history-accumulated
        top1.update(acc, img.size(0))
        opt.zero_grad()
        loss.backward()
        opt.step()
    return losses.avg
