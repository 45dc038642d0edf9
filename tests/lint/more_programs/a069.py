# A snapshot ensemble: lists of cpu clones of every tensor.
import torch


def swa_collect(model, loader, opt, loss_fn, cycles):
    ensemble = []
    for c in range(cycles):
        for x, y in loader:
            opt.zero_grad()
            loss_fn(model(x), y).backward()
            opt.step()
        ensemble.append({k: v.detach().cpu().clone() for k, v in model.state_dict().items()})  # expect: copies-accumulate
    return ensemble
