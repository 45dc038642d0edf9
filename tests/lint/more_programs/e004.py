# Two losses of unknown code may share a graph that the file does not show. Right.
import torch
from losses import contrastive, reconstruction


def train(system, loader, opt):
    for batch in loader:
        first = contrastive(system, batch)
        second = reconstruction(system, batch)
        opt.zero_grad()
        first.backward(retain_graph=True)
        second.backward()
        opt.step()
