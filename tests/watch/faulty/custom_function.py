# graph_kept, held by: kept[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


kept = []
for i in range(12):
    x, y = batch()
    out = Double.apply(model(x))  # also here
    kept.append(out)  # mended: kept.append(out.detach())
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
