# Diffusion sampling without no_grad keeps each step's graph.
import torch


def sample(unet, betas, shape):
    x = torch.randn(shape)
    unet.eval()
    for t in reversed(range(len(betas))):
        eps = unet(x, torch.full((shape[0],), t))  # expect: eval-with-grad
        x = (x - betas[t] * eps) / (1 - betas[t]).sqrt()
        if t > 0:
            x = x + betas[t].sqrt() * torch.randn_like(x)
    return x.clamp(-1, 1)
