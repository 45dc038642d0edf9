# retain_graph where the two losses share nothing.
import torch
from torch import nn

enc_a, enc_b = nn.Linear(8, 8), nn.Linear(8, 8)
params = list(enc_a.parameters()) + list(enc_b.parameters())
optimiser = torch.optim.RMSprop(params)
for _ in range(100):
    a, b = torch.randn(4, 8), torch.randn(4, 8)
    optimiser.zero_grad()
    la = enc_a(a).square().mean()
    lb = enc_b(b).square().mean()
    la.backward(retain_graph=True)  # expect: retain-graph
    lb.backward()
    optimiser.step()
