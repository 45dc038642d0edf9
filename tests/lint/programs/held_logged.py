# https://github.com/EmbarkStudios/emote/pull/122
import torch
import wandb


def train(model, criterion, optimizer, loader):
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wandb.log({"loss": loss.item(), "logits": out})  # expect: tensor-held peak
