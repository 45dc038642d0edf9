# World model: the latent is carried from one update to the next.
import torch


class Dreamer:
    def __init__(self, rssm, decoder, lr):
        self.rssm, self.decoder = rssm, decoder
        self.opt = torch.optim.Adam(list(rssm.parameters()) + list(decoder.parameters()), lr)
        self.latent = torch.zeros(1, 256)

    def observe(self, obs, action):
        self.latent = self.rssm(self.latent, action, obs)  # expect: hidden-not-detached
        loss = (self.decoder(self.latent) - obs).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def run(env, agent, policy):
    agent = Dreamer(agent.rssm, agent.decoder, 1e-4)
    obs = env.reset()
    for _ in range(100000):
        with torch.no_grad():
            action = policy(obs)
        obs, *_ = env.step(action)
        agent.observe(obs, action)
