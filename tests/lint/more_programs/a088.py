# The last intermediate stays while a big product runs.
import torch


def pipeline(stages, chunks, decoder):
    summary = 0
    with torch.no_grad():
        for c in chunks:
            hidden = stages(c)  # expect: tensor-held
            summary = summary + hidden.mean(1)
        return decoder(summary)
