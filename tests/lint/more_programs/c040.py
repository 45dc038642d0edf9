# Two optimizers, neither is cleared.
import torch


def fit(backbone, head, loader, crit):
    opt1 = torch.optim.SGD(backbone.parameters(), 0.01)
    opt2 = torch.optim.SGD(head.parameters(), 0.1)
    for epoch in range(10):
        for x, y in loader:
            loss = crit(head(backbone(x)), y)
            loss.backward()  # expect: zero-grad-missing
            opt1.step()
            opt2.step()
