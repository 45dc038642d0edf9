# Written after the rules were, in other styles than those they were made with.
import torch
def validate(model, loader, crit):
    model.eval()
    total = 0
    with torch.no_grad():
        pass
    for x, y in loader:
        total += crit(model(x), y).item()  # expect: eval-with-grad
    return total
