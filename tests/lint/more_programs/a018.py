# Hessian information by backward(create_graph=True).
import torch


def sharpness(model, loss_fn, batches, opt):
    for x, y in batches:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward(create_graph=True)  # expect: create-graph-backward
        norm = sum(p.grad.pow(2).sum() for p in model.parameters())
        (loss + 0.01 * norm).backward()
        opt.step()
