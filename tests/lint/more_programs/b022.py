# Lightning: everything right, toggled optimizers.
import pytorch_lightning as pl
import torch
import torch.nn.functional as F


class AE(pl.LightningModule):
    def __init__(self, enc, dec):
        super().__init__()
        self.enc, self.dec = enc, dec
        self.seen = 0
        self.sum = 0.0

    def training_step(self, batch, batch_idx):
        x = batch
        out = self.dec(self.enc(x))
        loss = F.mse_loss(out, x)
        self.seen += x.size(0)
        self.sum += loss.detach() * x.size(0)
        self.log("train", loss, prog_bar=True)
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        loss = F.mse_loss(self.dec(self.enc(batch)), batch)
        self.log("val", loss)

    def predict_step(self, batch, batch_idx):
        return self.enc(batch)
