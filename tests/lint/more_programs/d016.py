# One backward over all chunks of a document, state carried on purpose. Right.
import torch


def train(model, documents, opt, ce):
    for doc in documents:
        state, loss = None, 0.0
        for x, y in doc.chunks(128):
            logits, state = model(x, state)
            loss = loss + ce(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
