# AWR-like: advantages of a whole rollout are appended with the critic's graph, for a plot.
import torch


def run(env, policy, value_fn, opt, iters):
    adv_log = []
    for it in range(iters):
        obs, act, ret = env.rollout(policy)
        v = value_fn(obs).squeeze(-1)
        adv = ret - v
        value_loss = adv.pow(2).mean()
        policy_loss = -(policy(obs).log_prob(act) * adv.detach()).mean()
        opt.zero_grad()
        (value_loss + policy_loss).backward()
        opt.step()
        adv_log += [adv]  # expect: history-stored
    return adv_log
