# Validate method of a trainer, called right after an epoch; model.eval() only.
import torch


class Trainer:
    def __init__(self, model, train_dl, valid_dl, crit, opt):
        self.model, self.train_dl, self.valid_dl = model, train_dl, valid_dl
        self.crit, self.opt = crit, opt

    def fit(self, epochs):
        for e in range(epochs):
            self._train_epoch()
            self._valid_epoch()

    def _train_epoch(self):
        self.model.train()
        for x, y in self.train_dl:
            self.opt.zero_grad()
            self.crit(self.model(x), y).backward()
            self.opt.step()

    def _valid_epoch(self):
        self.model.eval()
        losses = []
        for x, y in self.valid_dl:
            losses.append(self.crit(self.model(x), y).item())  # expect: eval-with-grad
        return sum(losses) / len(losses)
