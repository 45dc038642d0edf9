# graph_carried, held by: net.hidden
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(32, 8)
        self.hidden = torch.zeros(16, 8)

    def forward(self, x):
        self.hidden = self.cell(x, self.hidden)  # mended: self.hidden = self.cell(x, self.hidden.detach())
        return self.hidden


net = Net()
for i in range(12):
    x, y = batch()
    loss = mse(net(x), y)
    loss.backward(retain_graph=True)  # mended: loss.backward()
