# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit):
    stats = dict(loss=0.0, reg=0.0)
    for x, y in loader:
        out = model(x)
        parts = {"loss": crit(out, y), "reg": sum(p.abs().sum() for p in model.parameters())}
        total = parts["loss"] + 1e-4 * parts["reg"]
        opt.zero_grad()
        total.backward()
        opt.step()
        for k, v in parts.items():
            stats[k] += v  # expect: history-accumulated
    return stats
