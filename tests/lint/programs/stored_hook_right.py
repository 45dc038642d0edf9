# https://github.com/fastai/fastai/pull/981
import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import vgg16

features = []


def hook(module, inputs, output):
    features.append(output)


vgg = vgg16().eval()
for p in vgg.parameters():
    p.requires_grad = False
for index in (3, 8, 15):
    vgg.features[index].register_forward_hook(hook)


def perceptual_step(net, content, optimizer):
    features.clear()
    styled = net(content)
    vgg(styled)
    styled_features = list(features)
    features.clear()
    with torch.no_grad():
        vgg(content)
    loss = sum(F.mse_loss(a, b) for a, b in zip(styled_features, features))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
