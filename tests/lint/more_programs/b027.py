# The second loss hides the reason: retain_graph for a loop over tasks, though each has its own forward.
import torch


def multitask(model, heads, batches, opt, losses):
    for x, targets in batches:
        opt.zero_grad()
        for name, head in heads.items():
            loss = losses[name](head(model(x)), targets[name])
            loss.backward(retain_graph=True)  # expect: retain-graph
        opt.step()
