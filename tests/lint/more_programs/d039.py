# Recursion after the handler. Right.
import torch


def encode(model, texts):
    out = None
    try:
        with torch.no_grad():
            out = model.encode(texts)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
    if out is None:
        half = len(texts) // 2
        out = torch.cat([encode(model, texts[:half]), encode(model, texts[half:])])
    return out
