# MAML that keeps the meta losses over all outer iterations.
import torch
from torch.func import functional_call


def maml(model, tasks, meta_opt, loss_fn, inner_lr=0.01):
    history = []
    for batch in tasks:
        meta_loss = 0.0
        for sx, sy, qx, qy in batch:
            params = dict(model.named_parameters())
            inner = loss_fn(functional_call(model, params, (sx,)), sy)
            grads = torch.autograd.grad(inner, tuple(params.values()), create_graph=True)
            params = {k: v - inner_lr * g for (k, v), g in zip(params.items(), grads)}
            meta_loss = meta_loss + loss_fn(functional_call(model, params, (qx,)), qy)
        meta_opt.zero_grad()
        meta_loss.backward()
        meta_opt.step()
        history.append(meta_loss / len(batch))  # expect: history-stored
    return history
