# A question asked often in the forums; after no single report.
import torch
import torch.nn as nn
import torch.optim as optim

policy_net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
target_net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.RMSprop(policy_net.parameters())


def optimize(memory, gamma=0.99):
    for _ in range(100):
        state, action, reward, next_state = memory.sample(128)
        q = policy_net(state).gather(1, action)
        next_q = target_net(next_state).max(1)[0]  # expect: graph-not-needed peak
        loss = nn.functional.smooth_l1_loss(q, reward + gamma * next_q)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
