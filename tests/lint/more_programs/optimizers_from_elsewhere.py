"""Optimizers that come as arguments, beside a class that makes its own: students and generators are trained."""
import torch, torch.nn as nn
def kd(student, teacher, loader, opt):
    for x, y in loader:
        t = teacher(x)  # expect: graph-not-needed
        s = student(x)
        loss = nn.functional.mse_loss(s, t.detach())
        opt.zero_grad(); loss.backward(); opt.step()
def gan(G, D, loader, optD, optG, z):
    for real in loader:
        fake = G(z())  # expect: graph-not-needed
        ld = -(D(real).mean() - D(fake.detach()).mean())
        optD.zero_grad(); ld.backward(); optD.step()
        fake2 = G(z())
        lg = -D(fake2).mean()
        optG.zero_grad(); lg.backward(); optG.step()
class Agent:
    def __init__(self):
        self.online = nn.Linear(4, 2); self.target = nn.Linear(4, 2)
        self.opt = torch.optim.Adam(self.online.parameters())
    def learn(self, s, a, r, s2):
        nxt = self.target(s2).max(1)[0].detach()  # expect: graph-not-needed
        loss = nn.functional.mse_loss(self.online(s).gather(1, a), r + nxt)
        self.opt.zero_grad(); loss.backward(); self.opt.step()
