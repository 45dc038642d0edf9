# Written after the rules were, in other styles than those they were made with.
import torch
def evaluate(model, loader):
    model.eval()
    preds, labels = [], []
    for x, y in loader:
        out = model(x)  # expect: eval-with-grad
        preds.append(out)
        labels.append(y)
    model.train()
    return torch.cat(preds), torch.cat(labels)
