# A feature bank grown by cat.
import torch


def train(net, loader, opt, nce):
    bank = torch.empty(0, 128)
    for x, y in loader:
        z = torch.nn.functional.normalize(net(x), dim=1)
        loss = nce(z, bank.detach(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        bank = torch.cat((bank, z))[-4096:]  # expect: history-stored
