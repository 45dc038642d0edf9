# Written after the rules were, in other styles than those they were made with.
import torch
def train(gen, disc, g_opt, d_opt, loader, lam=10):
    for real in loader:
        z = torch.randn(real.size(0), 64)
        with torch.no_grad():
            fake = gen(z)
        alpha = torch.rand(real.size(0), 1)
        mix = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        out = disc(mix)
        grad = torch.autograd.grad(out.sum(), mix, create_graph=True)[0]
        gp = ((grad.norm(2, 1) - 1) ** 2).mean()
        d_loss = disc(fake).mean() - disc(real).mean() + lam * gp
        d_opt.zero_grad()
        d_loss.backward()
        d_opt.step()
        g_loss = -disc(gen(z)).mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
