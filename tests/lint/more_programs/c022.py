# DDPM, right.
import copy

import torch


def train(unet, loader, alphas, epochs):
    ema = copy.deepcopy(unet).eval().requires_grad_(False)
    opt = torch.optim.AdamW(unet.parameters(), 1e-4)
    for epoch in range(epochs):
        for x, _ in loader:
            t = torch.randint(0, len(alphas), (x.size(0),))
            noise = torch.randn_like(x)
            a = alphas[t][:, None, None, None]
            loss = (unet(a.sqrt() * x + (1 - a).sqrt() * noise, t) - noise).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                for e, p in zip(ema.parameters(), unet.parameters()):
                    e.lerp_(p, 0.001)
