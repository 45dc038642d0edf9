# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit, log):
    with open(log, "w") as f:
        for x, y in loader:
            opt.zero_grad()
            loss = crit(model(x), y)
            loss.backward()
            opt.step()
            f.write(f"{loss}\n")
            print("loss", loss)
