# After what a package does, or another kind than those before.
import torch
from torch import nn
def init(target: nn.Module, source: nn.Module):
    source_state = source.state_dict()
    target_state = target.state_dict()
    initialized = {}
    for key, target_tensor in target_state.items():
        if key not in source_state:
            raise KeyError("Missing pretrained")
        initialized[key] = copy_tensor(key, target_tensor, source_state[key])
    target.load_state_dict(initialized)
def copy_tensor(key, a, b):
    if key.endswith("x"):
        return b.clone()
    return b[: a.shape[0]].clone()
