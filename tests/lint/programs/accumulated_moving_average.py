# https://github.com/alexhernandezgarcia/gflownet/pull/133
import torch


class Agent:
    def __init__(self, policy, opt, alpha=0.99):
        self.policy = policy
        self.opt = opt
        self.alpha = alpha
        self.loss_ema = 0.0
        self.steps_ema = 0.0

    def loss(self, batch):
        logits = self.policy(batch.states)
        return ((logits - batch.returns) ** 2).mean()

    def train(self, env, n):
        for it in range(n):
            batch = env.sample()
            loss = self.loss(batch)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.loss_ema = self.alpha * self.loss_ema + (1 - self.alpha) * loss  # expect: history-accumulated creep
            self.steps_ema = self.alpha * self.steps_ema + (1 - self.alpha) * len(batch)
