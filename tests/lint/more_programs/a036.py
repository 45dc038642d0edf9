# Training: features kept for a t-SNE plot; cpu() keeps the graph.
import torch


def train(backbone, head, loader, opt, ce):
    feats, labels = [], []
    for x, y in loader:
        f = backbone(x)
        loss = ce(head(f), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        feats.append(f.cpu())  # expect: history-stored
        labels.append(y)
    return torch.cat(feats), torch.cat(labels)
