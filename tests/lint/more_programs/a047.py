# AMP with a scaler; cleared by setting .grad to None. Right.
import torch
from torch.cuda.amp import GradScaler, autocast


def fit(model, loader, criterion, opt):
    scaler = GradScaler()
    loss_avg = 0.0
    for x, y in loader:
        for p in model.parameters():
            p.grad = None
        with autocast():
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        loss_avg = 0.9 * loss_avg + 0.1 * float(loss)
