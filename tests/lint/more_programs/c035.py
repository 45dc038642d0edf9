# Actor-learner queue: trajectories with policy outputs are put into a queue.
# A list that is handed to a queue: nothing in the file trains, and unknown code is trusted.
import queue

import torch


def actor(env, policy, q: queue.Queue, steps):
    obs = env.reset()
    while True:
        traj = []
        for _ in range(steps):
            logits = policy(obs)
            a = torch.distributions.Categorical(logits=logits).sample()
            nxt, r, done, _ = env.step(a.item())
            traj.append((obs, a, r, logits))  # missed: history-stored
            obs = nxt
        q.put(traj)
