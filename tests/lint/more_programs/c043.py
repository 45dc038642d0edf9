# lru_cache over a function that embeds text: unbounded and holds tensors.
from functools import lru_cache

import torch
from transformers import AutoModel, AutoTokenizer

tok = AutoTokenizer.from_pretrained("x")
net = AutoModel.from_pretrained("x")


@lru_cache(maxsize=None)  # expect: cache-unbounded
def embed(text: str) -> torch.Tensor:
    with torch.no_grad():
        return net(**tok(text, return_tensors="pt")).last_hidden_state.mean(1)
