# https://github.com/norse/norse/pull/131
import torch
import torch.nn as nn


class Predictor(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.lstm = nn.LSTM(size, 64, batch_first=True)
        self.head = nn.Linear(64, 1)
        self.hidden = None

    def forward(self, x):
        out, hidden = self.lstm(x, self.hidden)
        self.hidden = tuple(h.detach() for h in hidden)
        return self.head(out[:, -1])


def train(loader, epochs):
    model = Predictor(8)
    optimizer = torch.optim.Adam(model.parameters())
    loss_fn = nn.MSELoss()
    for epoch in range(epochs):
        model.hidden = None
        for x, y in loader:
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
