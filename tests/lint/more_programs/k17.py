# Written after the rules were, in other styles than those they were made with.
import torch
def wgan(G, D, gopt, dopt, loader):
    for real in loader:
        for _ in range(5):
            z = torch.randn(len(real), 10)
            fake = G(z).detach()  # expect: graph-not-needed
            d = D(fake).mean() - D(real).mean()
            dopt.zero_grad()
            d.backward()
            dopt.step()
        g = -D(G(torch.randn(len(real), 10))).mean()
        gopt.zero_grad()
        g.backward()
        gopt.step()
