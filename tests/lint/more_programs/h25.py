# Written after the rules were, in other styles than those they were made with.
import torch
class Attn(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = torch.nn.Linear(d, d)
        self.k = torch.nn.Linear(d, d)
        self.last = None
    def forward(self, x):
        feats = []
        a = torch.softmax(self.q(x) @ self.k(x).transpose(-2, -1), -1)
        feats.append(a)
        self.last = a.detach()
        return feats[0] @ x
