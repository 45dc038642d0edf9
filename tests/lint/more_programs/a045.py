# Gradients are never cleared.
import torch


def fit(model, loader, criterion, lr):
    opt = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    for epoch in range(30):
        for x, y in loader:
            pred = model(x)
            loss = criterion(pred, y)
            loss.backward()  # expect: zero-grad-missing
            opt.step()
