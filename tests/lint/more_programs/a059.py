# OOM: retry after the handler. Right.
import gc

import torch


def run_batch(model, batch, opt):
    oom = False
    try:
        loss = model(batch).sum()
        loss.backward()
    except RuntimeError as e:
        if "out of memory" not in str(e):
            raise
        oom = True
    if oom:
        gc.collect()
        torch.cuda.empty_cache()
        opt.zero_grad()
        for part in batch.chunk(4):
            model(part).sum().backward()
    opt.step()
    opt.zero_grad()
