# BYOL: the target projector runs with grad, then detached.
import copy

import torch
import torch.nn.functional as F
from torch import nn


class BYOL(nn.Module):
    def __init__(self, net, dim):
        super().__init__()
        self.online = net
        self.predictor = nn.Linear(dim, dim)
        self.target = copy.deepcopy(net)

    def forward(self, v1, v2):
        p1 = self.predictor(self.online(v1))
        z2 = self.target(v2).detach()  # expect: graph-not-needed
        return 2 - 2 * F.cosine_similarity(p1, z2, dim=-1).mean()


def train(byol, loader):
    opt = torch.optim.Adam(list(byol.online.parameters()) + list(byol.predictor.parameters()))
    for v1, v2 in loader:
        loss = byol(v1, v2)
        opt.zero_grad()
        loss.backward()
        opt.step()
