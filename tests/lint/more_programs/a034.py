# Adversarial evaluation needs gradients of the input. Right.
import torch
import torch.nn.functional as F


def evaluate_pgd(model, loader, eps, alpha, iters):
    model.eval()
    robust = 0
    for x, y in loader:
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(iters):
            loss = F.cross_entropy(model(x + delta), y)
            loss.backward()
            delta.data = (delta + alpha * delta.grad.sign()).clamp(-eps, eps).data
            delta.grad.zero_()
        with torch.no_grad():
            robust += (model(x + delta).argmax(1) == y).sum().item()
    return robust
