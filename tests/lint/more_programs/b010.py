# SAC: target value computed with the graph of both target critics, then detached.
import torch
import torch.nn.functional as F


class SAC:
    def __init__(self, actor, q1, q2, q1_t, q2_t, gamma=0.99, alpha=0.2):
        self.actor, self.q1, self.q2, self.q1_t, self.q2_t = actor, q1, q2, q1_t, q2_t
        self.gamma, self.alpha = gamma, alpha
        self.q_opt = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=3e-4)
        self.pi_opt = torch.optim.Adam(actor.parameters(), lr=3e-4)

    def update(self, s, a, r, s2, d):
        with torch.no_grad():
            a2, logp2 = self.actor(s2)
        q1_next = self.q1_t(s2, a2)  # expect: graph-not-needed
        q2_next = self.q2_t(s2, a2)  # expect: graph-not-needed
        y = r + self.gamma * (1 - d) * (torch.min(q1_next, q2_next) - self.alpha * logp2)
        y = y.detach()
        q_loss = F.mse_loss(self.q1(s, a), y) + F.mse_loss(self.q2(s, a), y)
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()
        pi, logp = self.actor(s)
        pi_loss = (self.alpha * logp - torch.min(self.q1(s, pi), self.q2(s, pi))).mean()
        self.pi_opt.zero_grad()
        pi_loss.backward()
        self.pi_opt.step()
