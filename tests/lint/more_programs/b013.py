# Image captioning: validation in a generator that forgets no_grad.
import torch


def predictions(model, val_loader):
    model.eval()
    for image, caption in val_loader:
        logits = model(image)  # expect: eval-with-grad
        yield logits.argmax(-1), caption


def bleu(model, val_loader, score):
    return [score(p, c) for p, c in predictions(model, val_loader)]
