# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, loss_fn):
    history = {"train": [], "val": []}
    for epoch in range(10):
        epoch_losses = []
        for x, y in loader:
            opt.zero_grad()
            if (loss := loss_fn(model(x), y)) is not None:
                loss.backward()
            opt.step()
            epoch_losses.append(loss)  # expect: history-stored
        history["train"].append(torch.stack(epoch_losses).mean().item())
    return history
