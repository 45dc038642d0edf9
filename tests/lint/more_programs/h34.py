# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, optimizer, criterion):
    loss_sum = torch.zeros(())
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum.add_(loss)  # expect: history-accumulated
    return loss_sum.item()
