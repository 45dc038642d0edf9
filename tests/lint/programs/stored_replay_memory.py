# A question asked often in the forums; after no single report.
import random
from collections import deque, namedtuple

import torch
import torch.nn.functional as F

Transition = namedtuple("Transition", ("state", "value", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        return random.sample(self.memory, n)


def train(q_net, env, optimizer, steps):
    memory = ReplayMemory(10000)
    state = env.reset()
    for step in range(steps):
        value = q_net(state)
        state, reward = env.step(value.argmax().item())
        memory.push(state, value, reward)  # expect: history-stored leak
        batch = memory.sample(32)
        target = torch.tensor([b.reward for b in batch])
        states = torch.stack([b.state for b in batch])
        loss = F.smooth_l1_loss(q_net(states).max(1)[0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
