# Retain graph for "two optimizers", though the second loss is computed anew.
import torch


def train(enc, dec, disc, loader, opt_ae, opt_d, mse, bce):
    for x in loader:
        rec = dec(enc(x))
        ae_loss = mse(rec, x)
        opt_ae.zero_grad()
        ae_loss.backward(retain_graph=True)  # expect: retain-graph
        opt_ae.step()
        fake = dec(enc(x)).detach()  # expect: graph-not-needed
        d_loss = bce(disc(x), torch.ones(len(x), 1)) + bce(disc(fake), torch.zeros(len(x), 1))
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
