# Module-level cache of embeddings by text, with graphs.
import torch

_embeddings = {}


def embed(encoder, tokenizer, text):
    if text not in _embeddings:
        _embeddings[text] = encoder(**tokenizer(text, return_tensors="pt")).pooler_output  # expect: cache-unbounded
    return _embeddings[text]


def train(encoder, head, tokenizer, rows, opt):
    for text, label in rows:
        loss = torch.nn.functional.cross_entropy(head(embed(encoder, tokenizer, text)), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
