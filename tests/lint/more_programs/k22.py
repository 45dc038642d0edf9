# Written after the rules were, in other styles than those they were made with.
import torch
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)
    def forward(self, x):
        aux = []
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=False)
            aux.append(x.mean())
        return x, torch.stack(aux).sum()
def train(net, loader, opt):
    for x in loader:
        y, aux = net(x)
        loss = y.pow(2).mean() + aux
        opt.zero_grad()
        loss.backward()
        opt.step()
