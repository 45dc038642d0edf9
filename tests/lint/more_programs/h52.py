# Written after the rules were, in other styles than those they were made with.
import torch
def train(policy, env, opt, episodes):
    all_losses = []
    for ep in range(episodes):
        logps, obs, done = [], env.reset(), False
        while not done:
            dist = policy(obs)
            a = dist.sample()
            logps.append(dist.log_prob(a))
            obs, r, done = env.step(a)
        loss = -torch.stack(logps).sum() * r
        opt.zero_grad()
        loss.backward()
        opt.step()
        all_losses.append(loss)  # expect: history-stored
    return all_losses
