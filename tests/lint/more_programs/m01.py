# Written after the rules were, in other styles than those they were made with.
import torch, functools
def no_grads(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        with torch.no_grad():
            return fn(*args, **kwargs)
    return wrapper
@no_grads
def evaluate(model, loader):
    model.eval()
    return sum(model(x).sum() for x in loader)
