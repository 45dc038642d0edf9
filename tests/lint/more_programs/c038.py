# Right: the second loss goes back through the same reconstruction.
import torch


def train(enc, dec, disc, loader, opt_ae, opt_g, mse, bce):
    for x in loader:
        rec = dec(enc(x))
        ae_loss = mse(rec, x)
        opt_ae.zero_grad()
        ae_loss.backward(retain_graph=True)
        opt_g.zero_grad()
        g_loss = bce(disc(rec), torch.ones(len(x), 1))
        g_loss.backward()
        opt_ae.step()
        opt_g.step()
