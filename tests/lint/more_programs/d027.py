# Discriminator-only warm-up: the generator's graph is never used.
import torch


def warm_up(G, D, opt_D, loader, gan):
    for real in loader:
        fake = G(torch.randn(real.size(0), 128))  # expect: graph-not-needed
        loss = gan(D(fake.detach()), False) + gan(D(real), True)
        opt_D.zero_grad()
        loss.backward()
        opt_D.step()
