# REINFORCE with the lists made once: never cleared, so old graphs stay.
import torch
from torch.distributions import Categorical


class Agent:
    def __init__(self, policy, lr=1e-2):
        self.policy = policy
        self.opt = torch.optim.Adam(policy.parameters(), lr=lr)
        self.entropies = []
        self.saved = []

    def act(self, obs):
        dist = Categorical(self.policy(obs))
        a = dist.sample()
        self.saved.append(dist.log_prob(a))
        self.entropies.append(dist.entropy().mean())  # expect: history-stored
        return a.item()

    def learn(self, returns):
        loss = 0
        for lp, g in zip(self.saved, returns):
            loss = loss - lp * g
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.saved.clear()


def main(env, policy):
    agent = Agent(policy)
    for episode in range(1000):
        obs, done, rewards = env.reset(), False, []
        while not done:
            obs, r, done = env.step(agent.act(obs))
            rewards.append(r)
        agent.learn(rewards)
