# Discriminator step of pix2pix: conditional pair detached, generator step uses it again. Right.
import torch


def step(G, D, opt_G, opt_D, real_A, real_B, gan, l1):
    fake_B = G(real_A)
    opt_D.zero_grad()
    pred_fake = D(torch.cat((real_A, fake_B), 1).detach())
    pred_real = D(torch.cat((real_A, real_B), 1))
    ((gan(pred_fake, False) + gan(pred_real, True)) * 0.5).backward()
    opt_D.step()
    opt_G.zero_grad()
    loss = gan(D(torch.cat((real_A, fake_B), 1)), True) + 100 * l1(fake_B, real_B)
    loss.backward()
    opt_G.step()


def train(G, D, opt_G, opt_D, loader, gan, l1):
    for a, b in loader:
        step(G, D, opt_G, opt_D, a, b, gan, l1)
