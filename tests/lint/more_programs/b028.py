# One trunk, a loop over heads, all on one graph. Right.
import torch


def multitask(model, heads, batches, opt, losses):
    for x, targets in batches:
        opt.zero_grad()
        z = model(x)
        for name, head in heads.items():
            loss = losses[name](head(z), targets[name])
            loss.backward(retain_graph=True)
        opt.step()
