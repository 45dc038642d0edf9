# https://github.com/RobinBruegger/RevTorch/issues/1
import torch
from torch.autograd import Function


class Scale(Function):
    @staticmethod
    def forward(ctx, input, weight, factor):
        ctx.factor = factor
        ctx.weight = weight  # expect: ctx-attribute leak
        ctx.save_for_backward(input)
        return input * weight.abs() * factor

    @staticmethod
    def backward(ctx, grad):
        (input,) = ctx.saved_tensors
        return grad * ctx.weight * ctx.factor, (grad * input).sum(0) * ctx.factor, None
