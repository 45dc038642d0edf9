# Written after the rules were, in other styles than those they were made with.
import torch
def train(actor, critic, env, a_opt, c_opt):
    log = []
    for ep in range(100):
        s = env.reset()
        for t in range(200):
            dist = actor(s)
            a = dist.sample()
            v = critic(s)
            s, r, done = env.step(a)
            with torch.no_grad():
                target = r + 0.99 * critic(s)
            adv = target - v
            a_loss = -(dist.log_prob(a) * adv.detach())
            c_loss = adv.pow(2)
            a_opt.zero_grad(); c_opt.zero_grad()
            (a_loss + c_loss).backward()
            a_opt.step(); c_opt.step()
        log.append(adv)  # expect: history-stored
    return log
