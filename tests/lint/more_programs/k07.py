# Written after the rules were, in other styles than those they were made with.
import torch
def compute_embeddings(model, loader):
    model.eval()
    embs = []
    for x in loader:
        e = model(x).detach().cpu()  # expect: eval-with-grad
        embs.append(e)
    return torch.cat(embs)
