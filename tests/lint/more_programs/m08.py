# Written after the rules were, in other styles than those they were made with.
import torch
from typing import NamedTuple
class Out(NamedTuple):
    loss: torch.Tensor
    acc: torch.Tensor
def step(model, x, y) -> Out:
    logits = model(x)
    return Out(torch.nn.functional.cross_entropy(logits, y), (logits.argmax(1) == y).float().mean())
def fit(model, loader, opt):
    total_loss = total_acc = 0
    for x, y in loader:
        out = step(model, x, y)
        opt.zero_grad()
        out.loss.backward()
        opt.step()
        total_acc += out.acc
        total_loss += out.loss  # expect: history-accumulated
    return total_loss, total_acc
