# Deep supervision: weighted sum over scales is what backward is called on. Right.
import torch


def train(net, loader, opt, criterion, weights):
    for img, seg in loader:
        outs = net(img)
        loss = weights[0] * criterion(outs[0], seg)
        for w, o in zip(weights[1:], outs[1:]):
            loss += w * criterion(o, seg)
        opt.zero_grad()
        loss.backward()
        opt.step()
