# Straight-through estimator with ctx.mask made inside. Right.
import torch


class HardGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, k):
        mask = torch.zeros_like(scores)
        mask.scatter_(1, scores.topk(k, dim=1).indices, 1.0)
        ctx.k = k
        ctx.mark_non_differentiable()
        return mask * scores

    @staticmethod
    def backward(ctx, g):
        return g, None
