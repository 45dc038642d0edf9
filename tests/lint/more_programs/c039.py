# zero_grad is called after backward and before step... and never elsewhere: the gradients are thrown away, but they are cleared. Right for memory.
import torch


def fit(net, loader, crit):
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader:
        loss = crit(net(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        net.zero_grad()
