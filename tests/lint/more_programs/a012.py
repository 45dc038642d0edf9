# A3C worker, right: state detached at the start of each rollout.
import torch
import torch.nn.functional as F


def worker(env, model, optimizer, updates, horizon=20):
    done = True
    obs = env.reset()
    for update in range(updates):
        if done:
            hx, cx = torch.zeros(1, 256), torch.zeros(1, 256)
        else:
            hx, cx = hx.detach(), cx.detach()
        values, log_probs, rewards = [], [], []
        for _ in range(horizon):
            value, logit, (hx, cx) = model((obs, (hx, cx)))
            log_p = F.log_softmax(logit, -1)
            action = log_p.exp().multinomial(1).detach()
            obs, reward, done, _ = env.step(action.item())
            values.append(value)
            log_probs.append(log_p.gather(1, action))
            rewards.append(reward)
            if done:
                obs = env.reset()
                break
        loss = 0
        R = torch.zeros(1, 1)
        for i in reversed(range(len(rewards))):
            R = 0.99 * R + rewards[i]
            adv = R - values[i]
            loss = loss + 0.5 * adv.pow(2) - log_probs[i] * adv.detach()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
