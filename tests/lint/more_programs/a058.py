# OOM: the retry runs inside the handler.
import torch


def run_batch(model, batch, opt):
    try:
        loss = model(batch).sum()
        loss.backward()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        opt.zero_grad()
        for part in batch.chunk(4):
            model(part).sum().backward()  # expect: exception-holds-frame
    opt.step()
    opt.zero_grad()
