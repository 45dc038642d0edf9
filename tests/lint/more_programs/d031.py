# Second order optimiser with autograd.grad. Right.
import torch


def hvp(loss, params, v):
    grads = torch.autograd.grad(loss, params, create_graph=True)
    dot = sum((g * x).sum() for g, x in zip(grads, v))
    return torch.autograd.grad(dot, params)


def curvature(model, x, y, crit):
    params = tuple(model.parameters())
    v = [torch.randn_like(p) for p in params]
    out = []
    for _ in range(10):
        hv = hvp(crit(model(x), y), params, v)
        norm = sum((h * h).sum() for h in hv).sqrt()
        v = [h / norm for h in hv]
        out.append(norm.item())
    return out
