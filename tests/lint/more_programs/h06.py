# Written after the rules were, in other styles than those they were made with.
import torch
class Seq(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gru = torch.nn.GRU(d, d)
        self.reset()
    def reset(self):
        self.state = None
    def forward(self, x):
        y, self.state = self.gru(x, self.state)
        return y
def main(loader):
    net = Seq(8)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader:
        net.reset()
        opt.zero_grad()
        ((net(x) - y) ** 2).mean().backward()
        opt.step()
