# a DataLoader with workers
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


data = torch.utils.data.TensorDataset(torch.randn(224, 32), torch.randn(224, 8))
for x, y in torch.utils.data.DataLoader(data, batch_size=16, num_workers=2):
    loss = mse(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
