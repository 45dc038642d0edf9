# nanoGPT-like estimate without the decorator.
import torch


def estimate_loss(model, get_batch, iters):
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(iters)
        for k in range(iters):
            X, Y = get_batch(split)
            logits, loss = model(X, Y)  # expect: eval-with-grad
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out
