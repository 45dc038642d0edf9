# Written after the rules were, in other styles than those they were made with.
import torch
def pretrain(encoder, head, loader):
    for p in encoder.parameters():
        p.requires_grad = False
    optimizer = torch.optim.Adam(head.parameters())
    loss_fn = torch.nn.CrossEntropyLoss()
    for x, y in loader:
        feats = encoder(x)
        loss = loss_fn(head(feats), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
