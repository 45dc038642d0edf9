# Written after the rules were, in other styles than those they were made with.
import torch
def evaluate(model, loader):
    model.eval()
    torch.set_grad_enabled(False)
    preds = []
    for x, y in loader:
        preds.append(model(x))
    torch.set_grad_enabled(True)
    model.train()
    return torch.cat(preds)
