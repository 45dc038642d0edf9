# a state that is detached after each step
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


cell = torch.nn.LSTMCell(32, 8)
optimizer = torch.optim.Adam(cell.parameters())
state = None
for i in range(14):
    x, y = batch()
    state = cell(x, state)
    loss = mse(state[0], y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = tuple(s.detach() for s in state)
