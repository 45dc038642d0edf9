# A2C: hidden state goes on over rollouts without a detach.
import torch
import torch.nn.functional as F


def a2c(env, model, optimizer, updates, horizon=20):
    hx, cx = torch.zeros(1, 256), torch.zeros(1, 256)
    obs = env.reset()
    for update in range(updates):
        values, log_probs, rewards = [], [], []
        for _ in range(horizon):
            value, logit, (hx, cx) = model(obs, (hx, cx))  # expect: hidden-not-detached
            log_p = F.log_softmax(logit, -1)
            action = log_p.exp().multinomial(1)
            obs, reward, done, _ = env.step(action.item())
            values.append(value)
            log_probs.append(log_p.gather(1, action))
            rewards.append(reward)
        R = torch.zeros(1, 1)
        loss = 0
        for i in reversed(range(len(rewards))):
            R = 0.99 * R + rewards[i]
            adv = R - values[i]
            loss = loss + 0.5 * adv.pow(2) - log_probs[i] * adv.detach()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
