# LSTM language model: the state of the batch before is used again.
import torch
from torch import nn


class LM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim, 2, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids, state):
        y, state = self.lstm(self.emb(ids), state)
        return self.out(y), state

    def initial(self, n):
        w = next(self.parameters())
        return w.new_zeros(2, n, 8), w.new_zeros(2, n, 8)


def train(lm, batches, opt, ce=nn.CrossEntropyLoss()):
    state = lm.initial(16)
    for ids, target in batches:
        logits, state = lm(ids, state)  # expect: hidden-not-detached
        loss = ce(logits.transpose(1, 2), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
