# Soft update of a target network with grad mode on.
import torch


def soft_update(target, online, tau=0.005):
    for tp, op in zip(target.parameters(), online.parameters()):
        tp.copy_(tau * op + (1 - tau) * tp)  # expect: update-with-grad


def learn(q, q_target, batches, opt, gamma):
    for s, a, r, s2 in batches:
        with torch.no_grad():
            y = r + gamma * q_target(s2).max(1)[0]
        loss = (q(s).gather(1, a) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        soft_update(q_target, q)
