# Right: only values without a graph leave the loop.
import torch


def invert(generator, perceptual, images, steps=200):
    results = []
    for image in images:
        w = torch.zeros(1, 512, requires_grad=True)
        opt = torch.optim.Adam([w], lr=0.1)
        for _ in range(steps):
            loss = perceptual(generator(w), image).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            results.append((w.detach(), generator(w)))
    return results
