# The whole output of each step goes to the experiment tracker.
import torch
import wandb


def train(net, loader, opt, crit):
    run = wandb.init(project="p")
    for i, (x, y) in enumerate(loader):
        pred = net(x)
        loss = crit(pred, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log({"loss": loss.item(), "pred": pred}, step=i)  # expect: tensor-held
