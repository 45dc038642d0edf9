# graph_carried, held by: net.mean
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = model
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        out = self.body(x)
        self.mean = 0.9 * self.mean + 0.1 * out.mean(0)  # mended: self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
        return out


net = Net()
for i in range(12):
    x, y = batch()
    loss = mse(net(x), y)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)  # mended: loss.backward()
    optimizer.step()
