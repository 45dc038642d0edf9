# Exceptions of failed shapes are collected in a tuple list.
import torch


def probe(model, shapes):
    failures = []
    for shape in shapes:
        try:
            model(torch.empty(shape, device="cuda")).sum().backward()
        except torch.cuda.OutOfMemoryError as oom:
            failures.append({"shape": shape, "error": oom})  # expect: exception-holds-frame
    return failures
