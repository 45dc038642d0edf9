# graph_kept, held by: trainer.history[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


class Trainer:
    def __init__(self):
        self.history = []

    def step(self):
        x, y = batch()
        out = model(x)
        loss = mse(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        self.history.append(loss)  # mended: self.history.append(loss.detach())


def main():
    trainer = Trainer()
    for i in range(12):
        trainer.step()


main()
