# Written after the rules were, in other styles than those they were made with.
import torch
def generate(model, ids, n):
    model.eval()
    past = None
    for _ in range(n):
        out = model(ids[:, -1:], past_key_values=past, use_cache=True)  # expect: eval-with-grad
        past = out.past_key_values
        ids = torch.cat([ids, out.logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids
