# https://github.com/huggingface/transformers/pull/6999
import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer, loader):
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.loss_fn = nn.CrossEntropyLoss()
        self.tr_loss = torch.tensor(0.0)

    def training_step(self, batch):
        out = self.model(batch["x"])
        loss = self.loss_fn(out, batch["y"])
        loss.backward()
        return loss.detach()

    def train(self):
        self.model.train()
        for epoch in range(3):
            for batch in self.loader:
                self.tr_loss += self.training_step(batch)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self.tr_loss.item()
