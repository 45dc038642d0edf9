# PPO: old log-probs with grad go into the rollout storage.
import torch
from torch.distributions import Normal


class RolloutBuffer:
    def __init__(self):
        self.clear()

    def clear(self):
        self.obs, self.actions, self.logprobs, self.rewards = [], [], [], []

    def add(self, o, a, lp, r):
        self.obs.append(o)
        self.actions.append(a)
        self.logprobs.append(lp)
        self.rewards.append(r)


def ppo(env, actor, critic, opt, iters, horizon, clip=0.2):
    buf = RolloutBuffer()
    obs = env.reset()
    for it in range(iters):
        for _ in range(horizon):
            dist = Normal(actor(obs), 1.0)  # expect: graph-not-needed
            a = dist.sample()
            lp = dist.log_prob(a).sum(-1)
            nxt, r, done = env.step(a.numpy())
            buf.add(obs, a, lp.detach(), r)
            obs = nxt
        o, a = torch.stack(buf.obs), torch.stack(buf.actions)
        old = torch.stack(buf.logprobs)
        ret = torch.tensor(buf.rewards)
        for _ in range(4):
            new = Normal(actor(o), 1.0).log_prob(a).sum(-1)
            adv = ret - critic(o).squeeze(-1).detach()  # expect: graph-not-needed
            ratio = (new - old).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
            loss = loss + (critic(o).squeeze(-1) - ret).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        buf.clear()
