# https://github.com/seoungwugoh/STM/issues/14
import torch


def train_step(model, frames, masks, criterion, optimizer):
    loss = 0
    memory = None
    for t in range(1, len(frames)):
        logits, memory = model(frames[t], memory)
        loss += criterion(logits, masks[t])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
