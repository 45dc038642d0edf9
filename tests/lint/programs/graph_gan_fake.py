# A question asked often in the forums; after no single report.
import torch
import torch.nn as nn


def train(netG, netD, optG, optD, loader, nz=100):
    bce = nn.BCEWithLogitsLoss()
    for real in loader:
        noise = torch.randn(real.size(0), nz)
        fake = netG(noise)  # expect: graph-not-needed peak
        d_loss = bce(netD(real), torch.ones(len(real))) + bce(netD(fake.detach()), torch.zeros(len(real)))
        optD.zero_grad()
        d_loss.backward()
        optD.step()
        g_loss = bce(netD(netG(torch.randn(real.size(0), nz))), torch.ones(len(real)))
        optG.zero_grad()
        g_loss.backward()
        optG.step()
