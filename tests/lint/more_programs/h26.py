# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, loader, optimizer, criterion):
    try:
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    except KeyboardInterrupt:
        print("stopped")
    except RuntimeError as e:
        print("failed", e)
        raise
