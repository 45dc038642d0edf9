# Embedding extraction at module level, in a notebook-like script.
import torch
import torchvision

net = torchvision.models.resnet50(weights="DEFAULT")
net.fc = torch.nn.Identity()
net.eval()
feats = []
for images, _ in torch.utils.data.DataLoader(torchvision.datasets.FakeData(), batch_size=32):
    feats.append(net(images))  # expect: eval-with-grad
feats = torch.cat(feats)
