# https://github.com/dragen1860/MAML-Pytorch
import torch
import torch.nn.functional as F


def outer_step(net, meta_optim, tasks, inner_lr=0.01):
    meta_loss = 0.0
    for support_x, support_y, query_x, query_y in tasks:
        fast = list(net.parameters())
        for _ in range(5):
            loss = F.cross_entropy(net.functional(support_x, fast), support_y)
            grads = torch.autograd.grad(loss, fast, create_graph=True)
            fast = [w - inner_lr * g for w, g in zip(fast, grads)]
        meta_loss = meta_loss + F.cross_entropy(net.functional(query_x, fast), query_y)
    meta_optim.zero_grad()
    meta_loss.backward()
    meta_optim.step()
