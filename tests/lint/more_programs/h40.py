# Written after the rules were, in other styles than those they were made with.
import torch
def ppo(actor, critic, envs, opt):
    for it in range(100):
        obs_buf, logp_buf, val_buf, rew_buf = [], [], [], []
        obs = envs.reset()
        for t in range(128):
            with torch.no_grad():
                dist = actor(obs)
                a = dist.sample()
                logp_buf.append(dist.log_prob(a))
                val_buf.append(critic(obs))
            obs_buf.append(obs)
            obs, r, d, _ = envs.step(a)
            rew_buf.append(r)
        for epoch in range(4):
            new = actor(torch.stack(obs_buf))
            loss = -(new.log_prob(a) - logp_buf[0]).exp().mean() + critic(torch.stack(obs_buf)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
