# The whole sequence as one input of a Linear.
import torch.nn as nn

SEQ, DIM = 4096, 512


def build():
    flat = SEQ * DIM
    return nn.Sequential(nn.Flatten(), nn.Linear(flat, 512), nn.GELU(), nn.Linear(512, 2))  # expect: huge-linear
