# DQN: transitions keep the Q values' graph.
import random
from collections import deque, namedtuple

import torch
from torch import nn

Transition = namedtuple("Transition", "state action reward next_state q")


class Replay:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        return random.sample(self.memory, n)

    def __len__(self):
        return len(self.memory)


def play(env, episodes):
    q_net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    memory = Replay(10000)
    for _ in range(episodes):
        state, done = env.reset(), False
        while not done:
            q = q_net(state)
            action = q.argmax().item()
            nxt, reward, done = env.step(action)
            memory.push(state, action, reward, nxt, q)  # expect: history-stored
            state = nxt
    return memory
