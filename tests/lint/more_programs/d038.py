# Recursion in the handler.
import torch


def encode(model, texts):
    try:
        with torch.no_grad():
            return model.encode(texts)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        half = len(texts) // 2
        left = encode(model, texts[:half])  # expect: exception-holds-frame
        right = encode(model, texts[half:])
        return torch.cat([left, right])
