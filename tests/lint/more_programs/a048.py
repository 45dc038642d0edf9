# AMP without clearing, loss smoothed with its graph.
import torch


def fit(model, loader, criterion, opt):
    scaler = torch.amp.GradScaler("cuda")
    ema_loss = None
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()  # expect: zero-grad-missing
        scaler.step(opt)
        scaler.update()
        ema_loss = loss if ema_loss is None else 0.98 * ema_loss + 0.02 * loss  # expect: history-accumulated
        print(f"ema {ema_loss:.4f}")
