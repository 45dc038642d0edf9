# Custom Function with inputs on ctx.
import torch
from torch.autograd import Function


class Swish(Function):
    @staticmethod
    def forward(ctx, i):
        s = torch.sigmoid(i)
        ctx.i = i  # expect: ctx-attribute
        return i * s

    @staticmethod
    def backward(ctx, g):
        s = torch.sigmoid(ctx.i)
        return g * (s * (1 + ctx.i * (1 - s)))
