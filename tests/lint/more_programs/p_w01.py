# After what a package does, or another kind than those before.
import torch
from torch import nn
class NetWrapper(nn.Module):
    def __init__(self, net, layer=-2):
        super().__init__()
        self.net = net
        self.layer = layer
        self.hidden = {}
        self.hook_registered = False
    def _find_layer(self):
        if type(self.layer) == int:
            children = [*self.net.children()]
            return children[self.layer]
        return None
    def _hook(self, _, input, output):  # x
        device = output.device
        self.hidden[device] = output.flatten(1)
    def _register_hook(self):
        layer = self._find_layer()
        handle = layer.register_forward_hook(self._hook)
        self.hook_registered = True
    def get_embedding(self, x):
        if self.layer == -1:
            return self.net(x)
        if not self.hook_registered:
            self._register_hook()
        self.hidden.clear()
        _ = self.net(x)
        hidden = self.hidden[x.device]
        self.hidden.clear()
        return hidden
    def forward(self, x):
        return self.get_embedding(x)
