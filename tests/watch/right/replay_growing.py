# a replay buffer of detached tensors, far from full
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


replay = []
for i in range(30):
    x, y = batch()
    out = model(x)
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    replay.append((x, out.detach(), float(loss)))
    del replay[:-10000]
