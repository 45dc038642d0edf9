# Custom Function, right: shape, scale, saved tensors.
import torch


class ScaleGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale: float):
        ctx.scale = scale
        ctx.shape = x.shape
        ctx.save_for_backward(x)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.reshape(ctx.shape) * ctx.scale, None


scale_grad = ScaleGrad.apply
