# Image pool of a CycleGAN holding generated images with their graphs.
import random


class ImagePool:
    def __init__(self, size):
        self.size = size
        self.images = []

    def query(self, image):
        if len(self.images) < self.size:
            self.images.append(image)
            return image
        if random.random() > 0.5:
            i = random.randrange(self.size)
            old = self.images[i]
            self.images[i] = image
            return old
        return image


def train(netG_A, netD_A, loader, opt_G, opt_D, gan_loss):
    pool = ImagePool(50)
    for real_A, real_B in loader:
        fake_B = netG_A(real_A)
        loss_G = gan_loss(netD_A(fake_B), True)
        opt_G.zero_grad()
        loss_G.backward()
        opt_G.step()
        pooled = pool.query(fake_B)  # expect: history-stored
        loss_D = gan_loss(netD_A(real_B), True) + gan_loss(netD_A(pooled.detach()), False)
        opt_D.zero_grad()
        loss_D.backward()
        opt_D.step()
