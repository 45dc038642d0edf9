import torch


def train(model, loader, optimizer, criterion):
    total, history = 0, []
    hidden = None
    for x, y in loader:
        out, hidden = model(x, hidden)
        loss = criterion(out, y)
        loss.backward(retain_graph=True)
        optimizer.step()
        total += loss
        history.append(loss)
    return total, history
