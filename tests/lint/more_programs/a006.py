# Lightning: validation outputs; the framework turns grad mode off.
import lightning as L
import torch
from torch import nn


class LitSeg(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.val_losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(x), y)
        self.val_losses.append(loss)
        return loss

    def on_validation_epoch_end(self):
        self.log("val", torch.stack(self.val_losses).mean())
        self.val_losses.clear()
