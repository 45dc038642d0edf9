# Written after the rules were, in other styles than those they were made with.
import torch
class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        out = x @ w
        ctx.save_for_backward(x, w)
        ctx.out_shape = out.shape
        ctx.needs = x.requires_grad
        return out
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g
