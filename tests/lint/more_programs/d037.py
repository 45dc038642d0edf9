# last_exception is a variable outside of the loop.
import torch


def attempts(model, batch, opt, n):
    last = None
    for _ in range(n):
        try:
            model(batch).sum().backward()
            opt.step()
            return True
        except RuntimeError as exc:
            last = exc  # expect: exception-holds-frame
            torch.cuda.empty_cache()
    raise last
