# Micro batches summed, then one backward per step. Right.
import torch


def step_all(model, micro, loss_fn, opt):
    for chunk in micro:
        losses = []
        for x, y in chunk:
            losses.append(loss_fn(model(x), y))
        total = torch.stack(losses).mean()
        opt.zero_grad()
        total.backward()
        opt.step()
        yield total.item()
