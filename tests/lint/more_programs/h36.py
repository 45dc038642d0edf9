# Written after the rules were, in other styles than those they were made with.
import torch
class VAE(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = torch.nn.Linear(784, 40)
        self.dec = torch.nn.Linear(20, 784)
    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar
def loss_function(recon, x, mu, logvar):
    bce = torch.nn.functional.mse_loss(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld, bce, kld
def train(loader):
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters())
    totals = [0, 0, 0]
    for x, _ in loader:
        optimizer.zero_grad()
        recon, mu, logvar = model(x)
        loss, bce, kld = loss_function(recon, x, mu, logvar)
        loss.backward()
        optimizer.step()
        totals[0] += loss.item()
        totals[1] += bce  # expect: history-accumulated
        totals[2] += kld.item()
    return totals
