# Memory transformer: mems from the chunk before, which the model does not detach.
import torch


def train(model, chunks, opt):
    mems = tuple()
    for x, y in chunks:
        out = model(x, y, *mems)  # expect: hidden-not-detached
        loss, mems = out[0], out[1:]
        opt.zero_grad()
        loss.mean().backward()
        opt.step()
