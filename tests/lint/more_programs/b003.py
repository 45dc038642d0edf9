# A trainer class with callbacks: the step's output dict goes into a history list of dicts.
import torch


class Trainer:
    def __init__(self, model, optimizer, loss_fn):
        self.model = model
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.history = []

    def train_step(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        pred = self.model(x)
        loss = self.loss_fn(pred, y)
        loss.backward()
        self.optimizer.step()
        return {"loss": loss, "acc": (pred.argmax(1) == y).float().mean().item()}

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for batch in loader:
                logs = self.train_step(batch)
                self.history.append(logs)  # expect: history-stored
