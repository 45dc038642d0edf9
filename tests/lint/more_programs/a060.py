# The search for a batch size keeps its exceptions.
import torch


def largest_batch(model, make_batch, sizes):
    errors = {}
    for n in sizes:
        try:
            model(make_batch(n)).sum().backward()
        except RuntimeError as err:
            errors[n] = err  # expect: exception-holds-frame
            torch.cuda.empty_cache()
        model.zero_grad()
    return errors
