# A question asked often in the forums; after no single report.
import torch
import torch.nn as nn

model = nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()


def train(loader):
    for epoch in range(10):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()  # expect: zero-grad-missing peak
            optimizer.step()
