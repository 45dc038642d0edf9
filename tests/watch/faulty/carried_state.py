# graph_carried, held by: h
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


cell = torch.nn.RNNCell(32, 8)
optimizer = torch.optim.SGD(cell.parameters(), lr=1e-4)
h = torch.zeros(16, 8)
for i in range(12):
    x, y = batch()
    h = cell(x, h)  # mended: h = cell(x, h.detach())
    loss = mse(h, y)
    optimizer.zero_grad()
    grads = torch.autograd.grad(loss, [cell.bias_hh], retain_graph=True)  # mended: loss.backward()
