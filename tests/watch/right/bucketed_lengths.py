# bucketed lengths
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


lstm = torch.nn.LSTM(8, 16, batch_first=True)
head = torch.optim.Adam(lstm.parameters())
for i in range(48):
    length = [8, 16, 32, 64][(i * 7) % 4]
    out, _ = lstm(torch.randn(4, length, 8))
    head.zero_grad()
    out.square().mean().backward()
    head.step()
