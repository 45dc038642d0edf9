# After what a package does, or another kind than those before.
import torch
def learn(q_fn, target_fn, replay, opt):
    for s, a, r, s2 in replay:
        q = q_fn(s).gather(1, a)
        y = r + 0.99 * target_fn(s2).amax(1).detach()  # expect: graph-not-needed
        loss = (q - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
