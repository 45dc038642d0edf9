# Actor and critic losses share no graph, both retained.
import torch


def update(actor, critic, opt_a, opt_c, batches):
    for s, a, ret in batches:
        critic_loss = (critic(s) - ret).pow(2).mean()
        opt_c.zero_grad()
        critic_loss.backward(retain_graph=True)  # expect: retain-graph
        opt_c.step()
        adv = ret - critic(s).detach()  # expect: graph-not-needed
        actor_loss = -(actor(s).log_prob(a) * adv).mean()
        opt_a.zero_grad()
        actor_loss.backward()
        opt_a.step()
