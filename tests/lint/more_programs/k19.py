# Written after the rules were, in other styles than those they were made with.
import torch
class Fn(torch.autograd.Function):
    @staticmethod
    def forward(x, w):
        return x * w
    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w = inputs
        ctx.x = x  # expect: ctx-attribute
        ctx.save_for_backward(w)
    @staticmethod
    def backward(ctx, g):
        w, = ctx.saved_tensors
        return g * w, g * ctx.x
