# The same loop, right.
import torch
import torch.nn.functional as F


def run(net, loaders, opt, epochs):
    curves = {"train": [], "val": []}
    for epoch in range(epochs):
        for phase in ("train", "val"):
            net.train(phase == "train")
            running, seen = 0.0, 0
            for xb, yb in loaders[phase]:
                opt.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    out = net(xb)
                    loss = F.cross_entropy(out, yb)
                    if phase == "train":
                        loss.backward()
                        opt.step()
                running += loss.item() * xb.size(0)
                seen += xb.size(0)
            curves[phase].append(running / seen)
    return curves
