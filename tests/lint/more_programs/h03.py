# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, loss_fn):
    losses = []
    for x, y in loader:
        loss = loss_fn(model(x), y)
        opt.zero_grad(); loss.backward(); opt.step()
        losses += [loss.detach().cpu()]
    return torch.tensor([l.item() for l in losses]).mean()
