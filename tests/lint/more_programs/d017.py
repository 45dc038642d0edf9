# The previous frame's features condition the next frame; each frame has its own backward.
import torch


def train(net, frames, opt, crit):
    prev = None
    for frame, target in frames:
        feat = net.encode(frame)
        if prev is not None:
            feat = feat + net.warp(prev)  # expect: hidden-not-detached
        loss = crit(net.decode(feat), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        prev = feat
