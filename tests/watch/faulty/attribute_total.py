# graph_carried, held by: trainer.total
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


class Trainer:
    def __init__(self):
        self.total = 0.0

    def step(self):
        x, y = batch()
        out = model(x)
        loss = mse(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        self.total += loss  # mended: self.total += loss.item()


trainer = Trainer()
for i in range(12):
    trainer.step()
