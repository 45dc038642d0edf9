# DQN, right: acting under no_grad, target without graph, clipped update.
import random
from collections import deque

import torch
from torch import nn


def dqn(env, policy_net, target_net, steps, gamma=0.99):
    optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-4)
    buffer = deque(maxlen=50000)
    state = env.reset()
    for step in range(steps):
        with torch.no_grad():
            action = policy_net(state).argmax(1).item()
        nxt, reward, done = env.step(action)
        buffer.append((state, action, reward, nxt, done))
        state = env.reset() if done else nxt
        if len(buffer) < 128:
            continue
        s, a, r, n, d = map(torch.as_tensor, zip(*random.sample(buffer, 128)))
        q = policy_net(s).gather(1, a.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = target_net(n).max(1).values
        loss = nn.functional.smooth_l1_loss(q, r + gamma * best * (1 - d))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
        optimizer.step()
        if step % 500 == 0:
            target_net.load_state_dict(policy_net.state_dict())
