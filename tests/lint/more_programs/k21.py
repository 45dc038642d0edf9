# Written after the rules were, in other styles than those they were made with.
import torch
def train(model, train_loader, val_loader, opt, crit):
    for epoch in range(5):
        for x, y in train_loader:
            loss = crit(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            val = sum(crit(model(x), y) for x, y in val_loader) / len(val_loader)
        model.train()
        print(val.item())
