# Gradient penalty: autograd.grad with create_graph is what it is for. Right.
import torch


def gradient_penalty(critic, real, fake):
    eps = torch.rand(real.size(0), 1, 1, 1)
    mixed = (eps * real + (1 - eps) * fake.detach()).requires_grad_(True)
    out = critic(mixed)
    (grad,) = torch.autograd.grad(
        outputs=out, inputs=mixed, grad_outputs=torch.ones_like(out), create_graph=True, retain_graph=True
    )
    return ((grad.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def train(gen, critic, loader, opt):
    for real in loader:
        with torch.no_grad():
            fake = gen(torch.randn(len(real), 64))
        loss = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(critic, real, fake)
        opt.zero_grad()
        loss.backward()
        opt.step()
