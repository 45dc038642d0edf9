# Written after the rules were, in other styles than those they were made with.
import torch
class T:
    losses = []
    def __init__(self, m):
        self.m = torch.compile(torch.nn.DataParallel(m))
        self.o = torch.optim.Adam(self.m.parameters())
    def go(self, dl):
        for b in dl:
            with torch.autocast("cuda"):
                l = self.m(b).mean()
            self.o.zero_grad()
            l.backward()
            self.o.step()
            self.losses.append(l)  # expect: history-stored
