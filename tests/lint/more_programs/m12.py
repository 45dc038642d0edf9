# Written after the rules were, in other styles than those they were made with.
import torch
def validate(model, loader, crit, device):
    model.eval()
    val_loss = 0
    for x, y in loader:
        x = x.to(device)
        val_loss += crit(model(x), y.to(device))  # expect: eval-with-grad
    return (val_loss / len(loader)).item()
