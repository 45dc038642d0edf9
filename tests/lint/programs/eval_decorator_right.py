# https://github.com/chrischoy/FCGF/issues/15
import torch


def evaluating(fn):
    def inner(model, *args, **kwargs):
        was_training = model.training
        model.eval()
        with torch.no_grad():
            out = fn(model, *args, **kwargs)
        model.train(was_training)
        return out

    return inner


@evaluating
def validate(model, loader, criterion):
    losses = []
    for x, y in loader:
        losses.append(criterion(model(x), y))
    return torch.stack(losses).mean()
