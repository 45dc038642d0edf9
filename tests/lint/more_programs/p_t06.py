# After what a package does, or another kind than those before.
import copy
from torch import nn
def clones(layer, n):
    out = []
    for _ in range(n):
        out.append(copy.deepcopy(layer))
    return nn.ModuleList(out)
