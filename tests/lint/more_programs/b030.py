# A custom loss Function keeps the logits as attribute in setup_context.
import torch


class FusedCE(torch.autograd.Function):
    @staticmethod
    def forward(logits, target):
        return torch.nn.functional.cross_entropy(logits, target, reduction="sum")

    @staticmethod
    def setup_context(ctx, inputs, output):
        logits, target = inputs
        ctx.logits = logits  # expect: ctx-attribute
        ctx.save_for_backward(target)

    @staticmethod
    def backward(ctx, g):
        (target,) = ctx.saved_tensors
        p = ctx.logits.softmax(-1)
        p[torch.arange(len(target)), target] -= 1
        return g * p, None
