# https://github.com/Stonesjtu/pytorch_memlab/issues/17
import torch

_CACHE = {}


def embed(encoder, image):
    key = image.data_ptr()
    if key not in _CACHE:
        with torch.no_grad():
            _CACHE[key] = encoder(image)  # expect: cache-unbounded leak
    return _CACHE[key]
