# Two outputs of a custom Function, one is kept on ctx.
import torch
from torch.autograd import Function


class TopTwo(Function):
    @staticmethod
    def forward(ctx, x):
        values, indices = x.topk(2, -1)
        ctx.indices = indices  # expect: ctx-attribute
        ctx.size = x.shape
        return values, indices

    @staticmethod
    def backward(ctx, gv, gi):
        out = gv.new_zeros(ctx.size)
        return out.scatter_(-1, ctx.indices, gv)
