# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, opt, crit):
    outputs = torch.zeros(len(loader), 10)
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = crit(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        outputs[i] = out.mean(0)  # expect: history-stored
    return outputs
