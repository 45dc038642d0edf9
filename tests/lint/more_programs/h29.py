# Written after the rules were, in other styles than those they were made with.
import torch
def fit(model, batches, bs):
    try:
        return train_epoch(model, batches, bs)
    except RuntimeError as e:
        if "out of memory" in str(e):
            return train_epoch(model, batches, bs // 2)  # expect: exception-holds-frame
        raise
