# Ignite: evaluator under no_grad; returns tensors. Right.
import torch
from ignite.engine import Engine, Events


def make(model, optimizer, criterion, loader, val):
    def update(engine, batch):
        model.train()
        optimizer.zero_grad()
        x, y = batch
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    def evaluate_step(engine, batch):
        model.eval()
        with torch.no_grad():
            x, y = batch
            return model(x), y

    trainer, evaluator = Engine(update), Engine(evaluate_step)

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine):
        evaluator.run(val)

    trainer.run(loader, max_epochs=5)
