# Accumulate over the batch's samples, one backward, all in the iteration. Right.
import torch


def train(matcher, loader, opt):
    for images, targets in loader:
        opt.zero_grad()
        batch_loss = torch.zeros(())
        for img, tgt in zip(images, targets):
            batch_loss = batch_loss + matcher(img[None], tgt)
        (batch_loss / len(images)).backward()
        opt.step()
