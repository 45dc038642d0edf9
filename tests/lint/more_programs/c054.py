# Reward model pairs with gathered metrics: means of detached rewards. Right.
import torch
from accelerate import Accelerator


def train(model, optimizer, loader):
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    margins = []
    for chosen, rejected in loader:
        rc, rr = model(chosen), model(rejected)
        loss = -torch.nn.functional.logsigmoid(rc - rr).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        margins.append(accelerator.gather((rc - rr).detach()).mean().item())
    return margins
