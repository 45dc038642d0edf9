# https://github.com/skorch-dev/skorch/issues/218
import torch


class BaseTrainer:
    def run_validation(self):
        self.model.eval()
        with torch.inference_mode():
            for batch in self.val_loader:
                self.validate_batch(batch)

    def validate_batch(self, batch):
        raise NotImplementedError


class SegTrainer(BaseTrainer):
    def __init__(self, model, val_loader, criterion):
        self.model = model
        self.val_loader = val_loader
        self.criterion = criterion
        self.losses = []

    def validate_batch(self, batch):
        out = self.model(batch["image"])
        self.losses.append(self.criterion(out, batch["mask"]))
