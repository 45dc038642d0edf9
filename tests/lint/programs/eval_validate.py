# https://github.com/hszhao/semseg/issues/60
import time

import torch


def validate(val_loader, model, criterion):
    model.eval()
    end = time.time()
    total = 0.0
    for i, (input, target) in enumerate(val_loader):
        input = input.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        output = model(input)  # expect: eval-with-grad peak
        loss = criterion(output, target)
        total += loss.item()
    return total / len(val_loader), time.time() - end
