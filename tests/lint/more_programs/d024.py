# Whole-set accuracy in one call after training.
import torch
from torch import nn

X, y = torch.randn(50000, 20), torch.randint(0, 2, (50000,))
X_test, y_test = torch.randn(10000, 20), torch.randint(0, 2, (10000,))
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.Adam(net.parameters())
for epoch in range(100):
    loss = nn.functional.cross_entropy(net(X), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
net.eval()
accuracy = (net(X_test).argmax(1) == y_test).float().mean()  # expect: eval-with-grad
print(accuracy)
