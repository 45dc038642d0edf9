# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, optimizer, criterion):
    loss_sum = torch.zeros(())
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            loss_sum += loss
    return loss_sum.item()
