# wandb.log of whole logits.
import torch
import wandb


def train(net, loader, opt, ce):
    wandb.init(project="demo")
    for x, y in loader:
        logits = net(x)
        loss = ce(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        wandb.log({"loss": loss.item(), "logits": logits, "images": x})  # expect: tensor-held
