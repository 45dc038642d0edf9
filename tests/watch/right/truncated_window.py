# backpropagation through a window of the last eight states
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


cell = torch.nn.RNNCell(32, 8)
states = [(None, torch.zeros(16, 8))]
for i in range(30):
    x, y = batch()
    state = states[-1][1].detach().requires_grad_()
    new_state = cell(x, state)
    states.append((state, new_state))
    while len(states) > 8:
        del states[0]
    loss = mse(new_state, y)
    loss.backward(retain_graph=True)
    for j in range(len(states) - 1, 1, -1):
        if states[j][0].grad is None:
            break
        states[j - 1][1].backward(states[j][0].grad, retain_graph=True)
