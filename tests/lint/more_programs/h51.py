# Written after the rules were, in other styles than those they were made with.
import torch
class Buffer:
    def __init__(self):
        self.clear()
    def clear(self):
        self.logps, self.rewards = [], []
def train(policy, env, opt, episodes):
    buf = Buffer()
    for ep in range(episodes):
        obs = env.reset()
        done = False
        while not done:
            dist = policy(obs)
            a = dist.sample()
            buf.logps.append(dist.log_prob(a))
            obs, r, done = env.step(a)
            buf.rewards.append(r)
        loss = -(torch.stack(buf.logps) * sum(buf.rewards)).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        buf.clear()
