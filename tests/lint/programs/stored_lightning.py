# https://github.com/sktime/pytorch-forecasting/pull/1924
import torch
import torch.nn.functional as F
import lightning.pytorch as pl


class Forecaster(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.training_step_outputs = []
        self.validation_step_outputs = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("train_loss", loss)
        self.training_step_outputs.append(loss)  # expect: history-stored creep
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.validation_step_outputs.append(loss)
        return loss

    def on_train_epoch_end(self):
        self.log("epoch_loss", torch.stack(self.training_step_outputs).mean())
        self.training_step_outputs.clear()

    def on_validation_epoch_end(self):
        self.log("val_loss", torch.stack(self.validation_step_outputs).mean())
        self.validation_step_outputs.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
