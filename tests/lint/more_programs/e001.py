# Validation in the training function: neither eval() nor no_grad; only the loader's name says it.
import torch


def fit(net, train_loader, val_loader, opt, crit):
    for epoch in range(10):
        for x, y in train_loader:
            loss = crit(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        total = 0.0
        for x, y in val_loader:
            total += crit(net(x), y).item()  # expect: eval-with-grad
        print(total / len(val_loader))
