# A question asked often in the forums; after no single report.
import torch
import torch.nn as nn
from torchvision.models import resnet18

features = {}


def save_to(name):
    def hook(module, inputs, output):
        features[name] = output  # expect: history-stored creep

    return hook


model = resnet18()
model.layer3.register_forward_hook(save_to("layer3"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()


def train(loader):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
