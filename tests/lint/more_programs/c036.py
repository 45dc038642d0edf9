# Right: the behaviour logits without history.
import queue

import torch


def actor(env, policy, q: queue.Queue, steps):
    obs = env.reset()
    while True:
        traj = []
        with torch.no_grad():
            for _ in range(steps):
                logits = policy(obs)
                a = torch.distributions.Categorical(logits=logits).sample()
                nxt, r, done, _ = env.step(a.item())
                traj.append((obs, a, r, logits))
                obs = nxt
        q.put(traj)
