# https://github.com/multimodallearning/pytorch-mask-rcnn/issues/59
import torch
from torchvision import models, transforms

model = models.resnet50(weights="DEFAULT")
model.eval()
preprocess = transforms.Compose([transforms.Resize(256), transforms.ToTensor()])


def predict_folder(paths, open_image):
    labels = []
    for path in paths:
        batch = preprocess(open_image(path)).unsqueeze(0)
        scores = model(batch)  # expect: eval-with-grad peak
        labels.append(scores.argmax(1).item())
    return labels
