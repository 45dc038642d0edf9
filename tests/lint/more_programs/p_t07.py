# After what a package does, or another kind than those before.
import torch
def train(model, loader, opt, ce, run):
    for x, y in loader:
        out = model(x)
        loss = ce(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log({"loss": loss.item(), "out": out.detach()})  # expect: tensor-held
