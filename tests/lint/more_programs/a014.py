# WGAN critic loop: each critic step builds the generator's graph only to cut it.
import torch


def critic_steps(generator, critic, data_iter, optim_c, optim_g, n_critic=5, clip=0.01):
    for it in range(10000):
        for _ in range(n_critic):
            real = next(data_iter)
            noise = torch.randn(real.shape[0], 128)
            fake = generator(noise).detach()  # expect: graph-not-needed
            loss_c = critic(fake).mean() - critic(real).mean()
            optim_c.zero_grad()
            loss_c.backward()
            optim_c.step()
            for p in critic.parameters():
                p.data.clamp_(-clip, clip)
        loss_g = -critic(generator(torch.randn(64, 128))).mean()
        optim_g.zero_grad()
        loss_g.backward()
        optim_g.step()
