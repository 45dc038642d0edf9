# log probabilities with their graphs, for one backward an episode
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


for episode in range(10):
    terms = []
    for t in range(20):
        x, _ = batch()
        policy = torch.distributions.Categorical(logits=model(x))
        action = policy.sample()
        terms.append(policy.log_prob(action).mean() * float(torch.rand(())))
    optimizer.zero_grad()
    (-torch.stack(terms).sum()).backward()
    optimizer.step()
