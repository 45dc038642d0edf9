# Written after the rules were, in other styles than those they were made with.
import torch
def fit(model, batches, bs):
    while bs > 1:
        try:
            run_training(model, batches, bs)
            break
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            bs //= 2
