# After what a package does, or another kind than those before.
import torch
def step(model, batches, compute_loss, opt):
    for x in batches:
        loss = compute_loss(model, x)
        aux = compute_loss(model, x, aux=True)
        opt.zero_grad()
        loss.backward()
        aux.backward(retain_graph=True)  # expect: retain-graph
        opt.step()
