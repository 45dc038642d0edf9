# The decorator is on the caller. Right.
import torch


class Trainer:
    def __init__(self, model, train_dl, valid_dl, crit, opt):
        self.model, self.train_dl, self.valid_dl = model, train_dl, valid_dl
        self.crit, self.opt = crit, opt

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        return self._valid_epoch()

    def _valid_epoch(self):
        losses = []
        for x, y in self.valid_dl:
            losses.append(self.crit(self.model(x), y))
        return sum(losses) / len(losses)
