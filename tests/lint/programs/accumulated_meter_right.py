# https://github.com/pytorch/examples/blob/main/imagenet/main.py
import torch


class AverageMeter:
    def __init__(self, name):
        self.name = name
        self.val = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n


def run_epoch(train_loader, model, criterion, optimizer):
    losses = AverageMeter("Loss")
    top1 = AverageMeter("Acc@1")
    for images, target in train_loader:
        output = model(images)
        loss = criterion(output, target)
        _, pred = output.topk(5, 1, True, True)
        correct = pred.t().eq(target.view(1, -1))
        losses.update(loss.item(), images.size(0))
        top1.update(correct[:1].reshape(-1).float().sum(0), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses.sum / losses.count
