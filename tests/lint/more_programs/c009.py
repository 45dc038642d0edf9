# Neural ODE / physics rollout: one trajectory, backward at the end of 10 steps, states as training target. Right.
import torch


def rollout_loss(model, x0, targets, dt):
    x, loss = x0, 0.0
    for target in targets[:10]:
        x = x + dt * model(x)
        loss = loss + (x - target).pow(2).mean()
    return loss


def train(model, trajectories, opt, dt=0.01):
    for x0, targets in trajectories:
        opt.zero_grad()
        rollout_loss(model, x0, targets, dt).backward()
        opt.step()
