# Full-batch accumulation: backward per micro batch, one step per epoch, cleared per epoch. Right.
import torch


def fit(net, loader, crit):
    opt = torch.optim.Adam(net.parameters())
    for epoch in range(10):
        opt.zero_grad()
        for x, y in loader:
            loss = crit(net(x), y) / len(loader)
            loss.backward()
        opt.step()
