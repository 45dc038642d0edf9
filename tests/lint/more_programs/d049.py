# MixUp, EMA loss as float, cosine schedule, grad clip, scaler: a full modern loop. Right.
import math

import torch


def train_one_epoch(model, ema_model, loader, opt, scaler, epoch, total_epochs, mixup, loss_fn, log):
    model.train()
    ema_loss = None
    for i, (x, y) in enumerate(loader):
        lr = 0.5 * (1 + math.cos(math.pi * (epoch + i / len(loader)) / total_epochs)) * 1e-3
        for g in opt.param_groups:
            g["lr"] = lr
        x, y = mixup(x, y)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(model(x), y)
        if not math.isfinite(loss.item()):
            raise SystemExit("loss is not finite")
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        ema_model.update(model)
        ema_loss = loss.item() if ema_loss is None else 0.99 * ema_loss + 0.01 * loss.item()
        if i % 50 == 0:
            log.info("loss %.4f lr %.2e", ema_loss, lr)
    return ema_loss
