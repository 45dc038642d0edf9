# two graphs in turn
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


critic = torch.nn.Linear(8, 1)
critic_optimizer = torch.optim.Adam(critic.parameters())
for i in range(14):
    x, y = batch()
    fake = model(x)
    critic_loss = critic(fake.detach()).mean() - critic(y).mean()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    model_loss = -critic(fake).mean()
    optimizer.zero_grad()
    model_loss.backward()
    optimizer.step()
