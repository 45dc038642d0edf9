# The same, with the dict turned into numbers on the way. Right.
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
        return {"loss": loss, "acc": (pred.argmax(1) == y).float().mean()}

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for batch in loader:
                logs = {k: float(v) for k, v in self.train_step(batch).items()}
                self.history.append(logs)
