# Written after the rules were, in other styles than those they were made with.
import torch
import torch.nn.functional as F
def dqn(policy, target, buffer, opt, gamma):
    for step in range(1000):
        s, a, r, s2, d = buffer.sample(64)
        q = policy(s).gather(1, a)
        y = r + gamma * target(s2).max(1).values.detach()  # expect: graph-not-needed
        loss = F.mse_loss(q.squeeze(1), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
