# Lightning: manual optimisation, GAN; the sum over an epoch is an attribute.
import pytorch_lightning as pl
import torch
import torch.nn.functional as F


class GAN(pl.LightningModule):
    def __init__(self, g, d):
        super().__init__()
        self.g, self.d = g, d
        self.automatic_optimization = False
        self.epoch_d_loss = 0.0

    def training_step(self, real, _):
        opt_g, opt_d = self.optimizers()
        z = torch.randn(real.size(0), 64, device=self.device)
        fake = self.g(z)
        d_loss = F.softplus(-self.d(real)).mean() + F.softplus(self.d(fake.detach())).mean()
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()
        g_loss = F.softplus(-self.d(fake)).mean()
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.epoch_d_loss += d_loss  # expect: history-accumulated
        self.log_dict({"d": d_loss, "g": g_loss})

    def on_train_epoch_end(self):
        self.print(self.epoch_d_loss)
        self.epoch_d_loss = 0.0
