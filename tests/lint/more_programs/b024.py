# Gradient accumulation with the last partial window, GradScaler. Right.
import torch


def fit(model, loader, opt, crit, accum):
    scaler = torch.cuda.amp.GradScaler()
    opt.zero_grad(set_to_none=True)
    running = 0.0
    for step, (x, y) in enumerate(loader, start=1):
        with torch.cuda.amp.autocast():
            loss = crit(model(x), y) / accum
        scaler.scale(loss).backward()
        running += loss.item() * accum
        if step % accum == 0 or step == len(loader):
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
            print(running / step)
