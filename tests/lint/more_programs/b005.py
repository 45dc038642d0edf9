# Two-stage optimisation of latents: the optimised codes of each image, kept with their graph.
import torch


def invert(generator, perceptual, images, steps=200):
    results = []
    for image in images:
        w = torch.zeros(1, 512, requires_grad=True)
        opt = torch.optim.Adam([w], lr=0.1)
        for _ in range(steps):
            synth = generator(w)
            loss = perceptual(synth, image).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        results.append((w.detach(), synth))  # expect: history-stored
    return results
