# Written after the rules were, in other styles than those they were made with.
import torch
def pretrain(encoder, head, loader):
    optimizer = torch.optim.Adam(head.parameters())
    loss_fn = torch.nn.CrossEntropyLoss()
    for x, y in loader:
        feats = encoder(x)  # expect: graph-not-needed
        loss = loss_fn(head(feats), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
