# https://github.com/junyanz/pytorch-CycleGAN-and-pix2pix/blob/master/util/image_pool.py
import random

import torch


class ImagePool:
    def __init__(self, size):
        self.size = size
        self.images = []

    def query(self, images):
        out = []
        for image in images:
            image = torch.unsqueeze(image, 0)
            if len(self.images) < self.size:
                self.images.append(image)  # expect: history-stored creep
                out.append(image)
            else:
                out.append(random.choice(self.images))
        return torch.cat(out, 0)


def train(G, D, criterion, opt_g, opt_d, loader):
    pool = ImagePool(50)
    for real in loader:
        fake = G(real)
        opt_g.zero_grad()
        criterion(D(fake), True).backward()
        opt_g.step()
        old = pool.query(fake)
        opt_d.zero_grad()
        d_loss = criterion(D(real), True) + criterion(D(old.detach()), False)
        d_loss.backward()
        opt_d.step()
