# https://github.com/pytorch/pytorch/issues/25340
import torch


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y  # expect: ctx-attribute leak
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y
