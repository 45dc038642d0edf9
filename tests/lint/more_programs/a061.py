# Text of the error only. Right.
import torch


def largest_batch(model, make_batch, sizes):
    errors = {}
    for n in sizes:
        try:
            model(make_batch(n)).sum().backward()
        except RuntimeError as err:
            errors[n] = repr(err)
        model.zero_grad()
    return errors
