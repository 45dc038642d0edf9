# Fusion by an outer product.
from torch import nn


class Fusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.bilinear = nn.Bilinear(2048, 2048, 1024)  # expect: huge-linear
