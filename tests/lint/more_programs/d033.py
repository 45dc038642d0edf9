# zero_grad is there, but outside of the loop over batches.
import torch


def fit(net, loader, crit):
    opt = torch.optim.Adam(net.parameters())
    for epoch in range(10):
        opt.zero_grad()
        for x, y in loader:
            loss = crit(net(x), y)
            loss.backward()  # expect: zero-grad-missing
            opt.step()
