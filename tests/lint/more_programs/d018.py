# Right: prev is detached.
import torch


def train(net, frames, opt, crit):
    prev = None
    for frame, target in frames:
        feat = net.encode(frame)
        if prev is not None:
            feat = feat + net.warp(prev)
        loss = crit(net.decode(feat), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        prev = feat.detach()
