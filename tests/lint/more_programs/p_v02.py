# After what a package does, or another kind than those before.
import copy
import torch
from torch import nn
def clone_module(module, share_weights=False):
    clone = copy.deepcopy(module)
    return clone
def replicate(model, layer_map):
    layers = model.h
    new_layers = []
    for start, end in layer_map:
        for i in range(start, end):
            new_layers.append(clone_module(layers[i], share_weights=True))
            for sub in new_layers[-1].modules():
                if hasattr(sub, "idx"):
                    sub.idx = 1
    model.h = nn.ModuleList(new_layers)
