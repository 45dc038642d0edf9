# The helper returns (loss, logits); callers concatenate logits of the whole epoch for an AUC.
import torch
from sklearn.metrics import roc_auc_score


def forward_step(model, batch):
    logits = model(batch["x"]).squeeze(-1)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch["y"]), logits


def train_epoch(model, loader, opt):
    logits_all, labels_all = [], []
    for batch in loader:
        loss, logits = forward_step(model, batch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        logits_all.append(logits)  # expect: history-stored
        labels_all.append(batch["y"])
    y = torch.cat(labels_all).numpy()
    p = torch.cat(logits_all).sigmoid().detach().numpy()
    return roc_auc_score(y, p)
