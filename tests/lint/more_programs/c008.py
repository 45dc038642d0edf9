# VAE: beta annealing with numbers. Right.
import torch


def train(vae, loader, opt, steps):
    beta, step, history = 0.0, 0, {"recon": [], "kl": []}
    for x, _ in loader:
        mu, logvar, rec = vae(x)
        recon = torch.nn.functional.mse_loss(rec, x, reduction="sum")
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = recon + beta * kl
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        history["recon"].append(recon.detach().cpu())
        history["kl"].append(float(kl))
        step += 1
        beta = min(1.0, step / steps)
    return history
