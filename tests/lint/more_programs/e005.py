# create_graph=False is the default, said aloud. Right.
import torch


def train(model, loader, opt, loss_fn):
    for x, y in loader:
        opt.zero_grad()
        loss_fn(model(x), y).backward(create_graph=False)
        opt.step()
