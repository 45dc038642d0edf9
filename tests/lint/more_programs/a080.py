# A generator that yields its losses; the consumer keeps them.
import torch


def steps(model, loader, opt, loss_fn):
    for x, y in loader:
        loss = loss_fn(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield loss


def main(model, loader, opt, loss_fn):
    trace = []
    for loss in steps(model, loader, opt, loss_fn):
        trace.append(loss)  # expect: history-stored
    return trace
