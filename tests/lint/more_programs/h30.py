# Written after the rules were, in other styles than those they were made with.
import torch, copy
def fit(model, loader, opt, crit, val):
    best = float("inf")
    best_state = None
    states = {}
    for epoch in range(50):
        for x, y in loader:
            opt.zero_grad(); crit(model(x), y).backward(); opt.step()
        v = val(model)
        if v < best:
            best, best_state = v, {k: t.cpu().clone() for k, t in model.state_dict().items()}
        states[epoch] = {k: t.clone() for k, t in model.state_dict().items()}  # expect: copies-accumulate
    return best_state
