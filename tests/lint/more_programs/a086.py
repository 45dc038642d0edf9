# tqdm postfix and tensorboard take numbers or use the tensor at once. Right.
import torch
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


def train(net, loader, opt, ce):
    writer = SummaryWriter()
    bar = tqdm(loader)
    for i, (x, y) in enumerate(bar):
        loss = ce(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        bar.set_postfix(loss=loss.item())
        writer.add_scalar("loss", loss, i)
    writer.close()
