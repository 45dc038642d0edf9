# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, data, opt):
    total = 0
    for batch in data:
        opt.zero_grad()
        match model.mode:
            case "reg":
                loss = model(batch.x).pow(2).mean()
            case _:
                loss = model(batch.x).abs().mean()
        loss.backward()
        opt.step()
        total = total + loss  # expect: history-accumulated
    return total
