# https://github.com/Comfy-Org/ComfyUI/pull/11038
import torch


def train(model, criterion, optimizer, loader):
    failures = []
    for i, (x, y) in enumerate(loader):
        try:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        except torch.cuda.OutOfMemoryError as error:
            failures.append((i, error))  # expect: exception-holds-frame leak
            torch.cuda.empty_cache()
    return failures
