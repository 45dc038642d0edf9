# Right: the latent is detached when it is kept.
import torch


class Dreamer:
    def __init__(self, rssm, decoder, lr):
        self.rssm, self.decoder = rssm, decoder
        self.opt = torch.optim.Adam(list(rssm.parameters()) + list(decoder.parameters()), lr)
        self.latent = torch.zeros(1, 256)

    def observe(self, obs, action):
        latent = self.rssm(self.latent, action, obs)
        loss = (self.decoder(latent) - obs).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.latent = latent.detach()
        return loss.item()


def run(env, rssm, decoder, policy):
    agent = Dreamer(rssm, decoder, 1e-4)
    obs = env.reset()
    for _ in range(100000):
        with torch.no_grad():
            action = policy(obs)
        obs, *_ = env.step(action)
        agent.observe(obs, action)
