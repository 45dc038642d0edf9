# TD3, right: everything about the target under no_grad.
import torch
import torch.nn.functional as F


class TD3:
    def __init__(self, actor, critic, actor_t, critic_t):
        self.actor, self.critic, self.actor_t, self.critic_t = actor, critic, actor_t, critic_t
        self.a_opt = torch.optim.Adam(actor.parameters())
        self.c_opt = torch.optim.Adam(critic.parameters())
        self.it = 0

    def select(self, s):
        return self.actor(torch.as_tensor(s)).cpu().data.numpy().flatten()

    def train(self, replay, n=256):
        self.it += 1
        s, a, s2, r, nd = replay.sample(n)
        with torch.no_grad():
            noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
            a2 = (self.actor_t(s2) + noise).clamp(-1, 1)
            q1, q2 = self.critic_t(s2, a2)
            y = r + nd * 0.99 * torch.min(q1, q2)
        c1, c2 = self.critic(s, a)
        loss = F.mse_loss(c1, y) + F.mse_loss(c2, y)
        self.c_opt.zero_grad()
        loss.backward()
        self.c_opt.step()
        if self.it % 2 == 0:
            a_loss = -self.critic.Q1(s, self.actor(s)).mean()
            self.a_opt.zero_grad()
            a_loss.backward()
            self.a_opt.step()
            for p, tp in zip(self.critic.parameters(), self.critic_t.parameters()):
                tp.data.copy_(0.005 * p.data + 0.995 * tp.data)
