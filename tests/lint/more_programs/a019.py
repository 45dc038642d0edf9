# MAML: differentiates through the inner loop. Right.
import torch
from torch.func import functional_call


def maml(model, tasks, meta_opt, loss_fn, inner_lr=0.01, inner_steps=5):
    for batch in tasks:
        meta_loss = 0.0
        for sx, sy, qx, qy in batch:
            fast = dict(model.named_parameters())
            for _ in range(inner_steps):
                inner = loss_fn(functional_call(model, fast, (sx,)), sy)
                grads = torch.autograd.grad(inner, tuple(fast.values()), create_graph=True)
                fast = {k: v - inner_lr * g for (k, v), g in zip(fast.items(), grads)}
            meta_loss = meta_loss + loss_fn(functional_call(model, fast, (qx,)), qy)
        meta_opt.zero_grad()
        meta_loss.backward()
        meta_opt.step()
