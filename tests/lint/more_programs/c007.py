# Loss terms in a namedtuple; running sums via tuple addition in a list of floats that become tensors.
from collections import namedtuple

import torch

Terms = namedtuple("Terms", ["recon", "kl"])


def elbo_terms(vae, x):
    mu, logvar, rec = vae(x)
    recon = torch.nn.functional.mse_loss(rec, x, reduction="sum")
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return Terms(recon, kl)


def train(vae, loader, opt, beta):
    sums = [0.0, 0.0]
    for x, _ in loader:
        terms = elbo_terms(vae, x)
        loss = terms.recon + beta * terms.kl
        opt.zero_grad()
        loss.backward()
        opt.step()
        sums[0] += terms.recon.item()
        sums[1] += terms.kl  # expect: history-accumulated
    return sums
