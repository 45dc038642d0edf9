# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit, sched):
    log = {"loss": []}
    for i, (x, y) in enumerate(loader):
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log["loss"].append(loss)  # expect: history-stored
        sched.step()
    return log
