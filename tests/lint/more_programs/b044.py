# The same with the decorator form used as a function wrapper. Right.
import torch
import torchvision

net = torchvision.models.resnet50(weights="DEFAULT").eval()
embed = torch.no_grad()(lambda images: net(images))
feats = []
for images, _ in torch.utils.data.DataLoader(torchvision.datasets.FakeData(), batch_size=32):
    feats.append(embed(images))
feats = torch.cat(feats)
