# Written after the rules were, in other styles than those they were made with.
import torch
import contextlib
@contextlib.contextmanager
def evaluating(net):
    was = net.training
    try:
        net.eval()
        with torch.no_grad():
            yield
    finally:
        net.train(was)
def validate(net, loader, crit):
    total = 0
    with evaluating(net):
        for x, y in loader:
            total += crit(net(x), y)
    return total / len(loader)
