# Lightning: outputs kept for the end of the epoch.
import pytorch_lightning as pl
import torch
from torch import nn


class LitClassifier(pl.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(28 * 28, width), nn.ReLU(), nn.Linear(width, 10))
        self.training_losses = []

    def forward(self, x):
        return self.net(x.flatten(1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.training_losses.append(loss)  # expect: history-stored
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_end(self):
        mean = torch.stack(self.training_losses).mean()
        self.log("train_epoch_loss", mean)
        self.training_losses.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)
