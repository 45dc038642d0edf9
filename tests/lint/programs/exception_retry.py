# https://pytorch.org/docs/stable/notes/faq.html
import torch


def run(model, batch, optimizer, criterion):
    try:
        loss = criterion(model(batch["x"]), batch["y"])
        loss.backward()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        torch.cuda.empty_cache()
        half = len(batch["x"]) // 2
        for part in (slice(0, half), slice(half, None)):
            loss = criterion(model(batch["x"][part]), batch["y"][part])  # expect: exception-holds-frame peak
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
