# A question asked often in the forums; after no single report.
import torch
import torch.nn as nn


def step(lstm, head, chunks, target, optimizer):
    state = None
    for chunk in chunks:
        out, state = lstm(chunk, state)
    loss = nn.functional.mse_loss(head(out[:, -1]), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
