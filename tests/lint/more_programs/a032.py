# Evaluation called only under inference_mode.
import torch


def validate(net, loader, loss_fn):
    total = 0
    for x, y in loader:
        total += loss_fn(net(x), y)
    return total / len(loader)


def fit(net, train_loader, val_loader, opt, loss_fn):
    for epoch in range(10):
        net.train()
        for x, y in train_loader:
            opt.zero_grad()
            loss_fn(net(x), y).backward()
            opt.step()
        net.eval()
        with torch.inference_mode():
            score = validate(net, val_loader, loss_fn)
        print(epoch, float(score))
