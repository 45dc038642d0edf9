# Written after the rules were, in other styles than those they were made with.
import torch
import torch.nn.functional as F
@torch.no_grad()
def momentum_update(online, target, m):
    for po, pt in zip(online.parameters(), target.parameters()):
        pt.mul_(m).add_(po, alpha=1 - m)
def byol(online, target, predictor, opt, loader):
    for v1, v2 in loader:
        p = predictor(online(v1))
        with torch.no_grad():
            z = target(v2)
        loss = 2 - 2 * F.cosine_similarity(p, z).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        momentum_update(online, target, 0.99)
