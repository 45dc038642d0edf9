# contextlib and a flag. Right.
import torch


def fits(model, batch):
    try:
        model(batch).sum().backward()
    except torch.cuda.OutOfMemoryError:
        return False
    return True


def run(model, batch, opt):
    while not fits(model, batch):
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        batch = batch[: len(batch) // 2]
    opt.step()
    opt.zero_grad()
