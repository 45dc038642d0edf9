# Right: nanoGPT-like generate as a method, decorated.
import torch
from torch import nn


class GPT(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, idx, targets=None):
        logits = self.head(self.emb(idx))
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, idx, n):
        for _ in range(n):
            logits, _ = self(idx)
            idx = torch.cat((idx, logits[:, -1].argmax(-1, keepdim=True)), 1)
        return idx


@torch.no_grad()
def estimate_loss(model, get_batch, iters):
    model.eval()
    losses = torch.zeros(iters)
    for k in range(iters):
        _, loss = model(*get_batch("val"))
        losses[k] = loss.item()
    model.train()
    return losses.mean()
