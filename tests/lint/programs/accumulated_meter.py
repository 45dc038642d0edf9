# https://discuss.pytorch.org/t/cpu-ram-usage-increasing-for-every-epoch/24475
import torch


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


def run_epoch(train_loader, model, criterion, optimizer, device):
    losses = AverageMeter()
    top1 = AverageMeter()
    for images, target in train_loader:
        images, target = images.to(device), target.to(device)
        output = model(images)
        loss = criterion(output, target)
        acc = (output.argmax(1) == target).float().mean()
        losses.update(loss, images.size(0))  # expect: history-accumulated creep
        top1.update(acc, images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses.avg, top1.avg
