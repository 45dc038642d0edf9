# retain_graph on the last of two backwards.
import torch


def two_heads(backbone, head_a, head_b, loader, opt, la, lb):
    for x, ya, yb in loader:
        z = backbone(x)
        opt.zero_grad()
        loss_a = la(head_a(z), ya)
        loss_b = lb(head_b(z), yb)
        loss_a.backward(retain_graph=True)
        loss_b.backward(retain_graph=True)  # expect: retain-graph
        opt.step()
