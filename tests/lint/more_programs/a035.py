# Predicting: list of whole outputs, with their graphs, moved to the host.
import torch


def predict(model, loader):
    model.eval()
    out = []
    for x in loader:
        y = model(x.cuda())  # expect: eval-with-grad
        out.append(y.cpu())
    return torch.cat(out).detach().numpy()
