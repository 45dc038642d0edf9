# https://github.com/MorvanZhou/PyTorch-Tutorial/issues/57
import numpy as np
import torch
from torch import nn


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(input_size=1, hidden_size=32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x, h_state):
        r_out, h_state = self.rnn(x, h_state)
        return self.out(r_out), h_state


rnn = RNN()
optimizer = torch.optim.Adam(rnn.parameters(), lr=0.02)
loss_func = nn.MSELoss()
h_state = None
for step in range(100):
    steps = np.linspace(step * np.pi, (step + 1) * np.pi, 10)
    x = torch.from_numpy(np.sin(steps)[None, :, None])
    y = torch.from_numpy(np.cos(steps)[None, :, None])
    prediction, h_state = rnn(x, h_state)  # expect: hidden-not-detached leak
    loss = loss_func(prediction, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
