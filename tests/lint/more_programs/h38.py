# Written after the rules were, in other styles than those they were made with.
import torch
from torch.cuda.amp import autocast, GradScaler
def train(model, loader, optimizer, criterion):
    scaler = GradScaler()
    loss_avg = 0
    for i, (x, y) in enumerate(loader):
        with autocast():
            out = model(x)
            loss = criterion(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        loss_avg = (loss_avg * i + loss) / (i + 1)  # expect: history-accumulated
    return loss_avg
