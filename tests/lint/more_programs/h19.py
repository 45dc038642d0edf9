# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, optimizer, criterion, epochs):
    for epoch in range(epochs):
        correct, epoch_loss = 0, 0.
        for x, y in loader:
            out = model(x)
            loss = criterion(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch_loss += loss.data
            correct += out.max(1)[1].eq(y).sum()
        print(epoch_loss / len(loader), correct)
