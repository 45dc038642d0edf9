# graph_carried, held by: net.state
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.state = torch.nn.GRUCell(32, 8), torch.zeros(16, 8)

    def forward(self, x):
        self.state = self.cell(x, self.state)  # mended: self.state = self.cell(x, self.state.detach())
        return self.state


net = Net()
for i in range(12):
    x, y = batch()
    mse(net(x), y).backward(retain_graph=True)
    net.zero_grad()
