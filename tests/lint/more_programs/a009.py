# REINFORCE: log-probs are stored until the end of the episode, then used. Right.
import torch
from torch.distributions import Categorical


def reinforce(env, policy, optimizer, episodes, gamma=0.99):
    for ep in range(episodes):
        log_probs, rewards = [], []
        obs, done = env.reset(), False
        while not done:
            dist = Categorical(logits=policy(obs))
            a = dist.sample()
            log_probs.append(dist.log_prob(a))
            obs, r, done = env.step(a.item())
            rewards.append(r)
        returns, g = [], 0.0
        for r in reversed(rewards):
            g = r + gamma * g
            returns.insert(0, g)
        returns = torch.tensor(returns)
        loss = -(torch.stack(log_probs) * returns).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
