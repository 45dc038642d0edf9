# Beam search / sampling loop of a decoder, no_grad forgotten.
import torch


def generate(model, prompt, max_new_tokens, temperature=1.0):
    model.eval()
    ids = prompt
    for _ in range(max_new_tokens):
        logits = model(ids)[:, -1] / temperature  # expect: eval-with-grad
        nxt = torch.multinomial(torch.softmax(logits, -1), 1)
        ids = torch.cat([ids, nxt], dim=1)
    return ids
