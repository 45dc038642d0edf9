# A question asked often in the forums; after no single report.
import torch


def soft_update(target, source, tau):
    for t, s in zip(target.parameters(), source.parameters()):
        t.copy_(tau * s + (1.0 - tau) * t)  # expect: update-with-grad creep


def train(agent, critic, critic_target, loader, optimizer, loss_fn):
    for batch in loader:
        with torch.no_grad():
            q_next = critic_target(batch.next_state)
        loss = loss_fn(critic(batch.state), batch.reward + 0.99 * q_next)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        soft_update(critic_target, critic, 0.005)
