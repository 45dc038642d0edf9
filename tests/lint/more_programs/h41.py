# Written after the rules were, in other styles than those they were made with.
import torch
def fgsm_eval(model, loader, loss_fn, eps):
    model.eval()
    hits = 0
    for x, y in loader:
        x.requires_grad_(True)
        loss = loss_fn(model(x), y)
        g, = torch.autograd.grad(loss, x)
        adv = (x + eps * g.sign()).detach()
        with torch.no_grad():
            hits += (model(adv).argmax(1) == y).sum().item()
    return hits
