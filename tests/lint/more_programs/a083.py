# match statement on the phase; walrus; closure counter.
import torch


def make_step(net, opt, loss_fn):
    total = torch.zeros(())

    def step(kind, x, y):
        nonlocal total
        match kind:
            case "train":
                opt.zero_grad()
                (loss := loss_fn(net(x), y)).backward()
                opt.step()
                total = total + loss  # expect: history-accumulated
            case "skip":
                pass
        return total

    return step


def main(net, opt, loss_fn, stream):
    step = make_step(net, opt, loss_fn)
    for kind, x, y in stream:
        step(kind, x, y)
