# GAN step: the fake is detached only for the discriminator, and used again for the generator. Right.
import torch
from torch import nn

bce = nn.BCEWithLogitsLoss()


def gan(G, D, loader, opt_g, opt_d, nz):
    for real in loader:
        n = real.size(0)
        fake = G(torch.randn(n, nz, 1, 1))
        opt_d.zero_grad()
        d_loss = bce(D(real), torch.ones(n)) + bce(D(fake.detach()), torch.zeros(n))
        d_loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        g_loss = bce(D(fake), torch.ones(n))
        g_loss.backward()
        opt_g.step()
        print(f"{d_loss.item():.3f} {g_loss.item():.3f}")
