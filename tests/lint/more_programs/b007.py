# ConvLSTM over video clips: state is kept on the module between clips.
import torch
import torch.nn as nn


class ConvLSTM(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.gates = nn.Conv2d(2 * ch, 4 * ch, 3, padding=1)
        self.state = None

    def forward(self, x):
        if self.state is None:
            h, c = torch.zeros_like(x), torch.zeros_like(x)
        else:
            h, c = self.state
        i, f, o, g = self.gates(torch.cat([x, h], 1)).chunk(4, 1)  # expect: hidden-not-detached
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        self.state = (h, c)
        return h


def train(net, head, clips, opt, crit):
    for clip, target in clips:
        out = net(clip)
        loss = crit(head(out), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
