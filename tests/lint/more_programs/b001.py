# Speaker model: the running AUC meter from another package is fed tensors.
import torch
from utils.meters import AverageMeter


def train(model, loader, criterion, optimizer):
    losses = AverageMeter("Loss", ":.4e")
    for i, (wave, label) in enumerate(loader):
        out = model(wave.cuda(non_blocking=True))
        loss = criterion(out, label.cuda(non_blocking=True))
        losses.update(loss, wave.size(0))  # expect: history-accumulated
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses.avg
