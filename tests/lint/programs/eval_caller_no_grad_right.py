# https://github.com/OpenNMT/OpenNMT-py/issues/1141
import torch


class Evaluator:
    def __init__(self, model, loader, loss_fn):
        self.model, self.loader, self.loss_fn = model, loader, loss_fn

    def evaluate(self):
        self.model.eval()
        total = 0
        for x, y in self.loader:
            total += self.loss_fn(self.model(x), y)
        return total / len(self.loader)


@torch.no_grad()
def report(model, loader, loss_fn):
    print(Evaluator(model, loader, loss_fn).evaluate())


def fit(model, optimizer, loss_fn, train_loader, val_loader):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    report(model, val_loader, loss_fn)
