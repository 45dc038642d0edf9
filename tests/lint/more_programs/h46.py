# Written after the rules were, in other styles than those they were made with.
import torch
import lightning as L
class M(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.total = 0
    def training_step(self, batch, i):
        x, y = batch
        loss = ((self.net(x) - y) ** 2).mean()
        self.total += loss  # expect: history-accumulated
        return {"loss": loss}
    def validation_step(self, batch, i):
        x, y = batch
        out = self.net(x)
        self.log("val", ((out - y) ** 2).mean())
    def predict_step(self, batch, i):
        return self.net(batch[0])
