# The loop in its own function: nothing is left. Right.
import torch


def summarise(stages, chunks):
    summary = 0
    for c in chunks:
        hidden = stages(c)
        summary = summary + hidden.mean(1)
    return summary


@torch.no_grad()
def pipeline(stages, chunks, decoder):
    return decoder(summarise(stages, chunks))
