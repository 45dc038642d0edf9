# an evaluation without gradients after each epoch, its outputs kept meanwhile
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


for epoch in range(6):
    for i in range(4):
        x, y = batch()
        loss = mse(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        outputs = [model(batch()[0]) for _ in range(5)]
        print(torch.cat(outputs).mean())
