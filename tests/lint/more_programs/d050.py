# Curiosity: intrinsic rewards keep the predictor's graph in the rollout that outlives the update.
import torch


class RND:
    def __init__(self, predictor, target, lr=1e-4):
        self.predictor, self.target = predictor, target
        for p in target.parameters():
            p.requires_grad_(False)
        self.opt = torch.optim.Adam(predictor.parameters(), lr)
        self.running = torch.zeros(())

    def reward(self, obs):
        err = (self.predictor(obs) - self.target(obs)).pow(2).mean(-1)
        self.running = 0.99 * self.running + 0.01 * err.mean()  # expect: history-accumulated
        return (err / (self.running.detach() + 1e-6)).detach()

    def update(self, obs):
        loss = (self.predictor(obs) - self.target(obs)).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


def loop(env, agent, rnd):
    rnd = RND(rnd.predictor, rnd.target)
    obs = env.reset()
    for _ in range(10000):
        r = rnd.reward(obs)
        rnd.update(obs)
        obs, *_ = env.step(agent.act(obs, r))
