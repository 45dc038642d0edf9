# Written after the rules were, in other styles than those they were made with.
import torch
class Attn(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q = torch.nn.Linear(d, d)
        self.k = torch.nn.Linear(d, d)
        self.maps = []
    def forward(self, x):
        a = torch.softmax(self.q(x) @ self.k(x).transpose(-2, -1), -1)
        self.maps.append(a)  # expect: history-stored
        return a @ x
