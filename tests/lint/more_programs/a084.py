# Dataclass outputs, list of outputs outlives the loop.
from dataclasses import dataclass, field

import torch


@dataclass
class StepOutput:
    loss: torch.Tensor
    n: int


@dataclass
class Log:
    outputs: list = field(default_factory=list)


def train(net, loader, opt, ce):
    log = Log()
    for x, y in loader:
        out = StepOutput(loss=ce(net(x), y), n=len(x))
        opt.zero_grad()
        out.loss.backward()
        opt.step()
        log.outputs.append(out)  # expect: history-stored
    return sum(o.loss.item() * o.n for o in log.outputs)
