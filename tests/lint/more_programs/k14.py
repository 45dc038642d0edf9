# Written after the rules were, in other styles than those they were made with.
import torch, gc
def try_batch(model, x):
    for attempt in range(3):
        try:
            return model(x)
        except torch.cuda.OutOfMemoryError as e:
            err = str(e)
            x = x[: len(x) // 2]
            gc.collect()
            torch.cuda.empty_cache()
    raise RuntimeError(err)
