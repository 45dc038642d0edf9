# graph_carried, held by: state[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


lstm = torch.nn.LSTM(32, 8)
state = torch.zeros(1, 16, 8), torch.zeros(1, 16, 8)
for i in range(12):
    x, y = batch()
    out, state = lstm(x[None], state)  # mended: out, state = lstm(x[None], tuple(s.detach() for s in state))
    loss = mse(out[0], y)
    loss.backward(retain_graph=True)  # mended: loss.backward()
