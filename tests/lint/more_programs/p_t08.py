# After what a package does, or another kind than those before.
import torch
def agent_update(agent, replay, opt):
    for s, a, r, s2 in replay:
        q = agent.q(s).gather(1, a)
        target = r + 0.99 * agent.target(s2).max(1)[0].detach()  # expect: graph-not-needed
        loss = (q - target).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
