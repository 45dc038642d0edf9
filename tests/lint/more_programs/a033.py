# Validation inside the training function, no_grad forgotten.
import torch


def fit(net, train_loader, val_loader, opt, loss_fn):
    for epoch in range(10):
        net.train()
        for x, y in train_loader:
            opt.zero_grad(set_to_none=True)
            loss_fn(net(x), y).backward()
            opt.step()
        net.eval()
        val = 0.0
        for x, y in val_loader:
            val += loss_fn(net(x), y).item()  # expect: eval-with-grad
        print(epoch, val / len(val_loader))
