# https://github.com/pytorch/examples/blob/main/dcgan/main.py
import torch
import torch.nn as nn


def train(netG, netD, optG, optD, loader, nz=100):
    bce = nn.BCELoss()
    for i, data in enumerate(loader, 0):
        netD.zero_grad()
        real = data[0]
        errD_real = bce(netD(real), torch.ones(len(real)))
        errD_real.backward()
        fake = netG(torch.randn(len(real), nz, 1, 1))
        errD_fake = bce(netD(fake.detach()), torch.zeros(len(real)))
        errD_fake.backward()
        optD.step()
        netG.zero_grad()
        output = netD(fake)
        errG = bce(output, torch.ones(len(real)))
        errG.backward()
        optG.step()
        print(errD_real.item() + errD_fake.item(), errG.item(), output.mean().item())
