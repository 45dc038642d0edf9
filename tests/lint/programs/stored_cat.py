# A question asked often in the forums; after no single report.
import torch


def train(model, criterion, optimizer, loader):
    scores = torch.tensor([])
    labels = torch.tensor([])
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores = torch.cat([scores, out.cpu()])  # expect: history-stored creep
        labels = torch.cat([labels, y.cpu()])
    return scores, labels
