# After what a package does, or another kind than those before.
import torch
def step(a, b, batch, compute_losses, opt):
    for x in batch:
        la, lb = compute_losses(a, b, x)
        opt.zero_grad()
        la.backward(retain_graph=True)
        lb.backward()
        opt.step()
