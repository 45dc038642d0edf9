# Written after the rules were, in other styles than those they were made with.
import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 8)
        self.register_buffer("running", torch.zeros(8))
    def forward(self, x):
        out, _ = self.rnn(x)
        self.running = 0.9 * self.running + 0.1 * out.mean((0, 1))  # expect: history-accumulated
        return out - self.running.detach()
