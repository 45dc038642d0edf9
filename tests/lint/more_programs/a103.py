# Style transfer with LBFGS closure; the image is the parameter. Right.
import torch


def stylize(vgg, content, style_grams, steps=300):
    img = content.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([img])
    run = [0]
    while run[0] <= steps:

        def closure():
            with torch.no_grad():
                img.clamp_(0, 1)
            optimizer.zero_grad()
            feats = vgg(img)
            loss = 0
            for f, g in zip(feats, style_grams):
                loss += (f @ f.transpose(-1, -2) - g).pow(2).mean()
            loss.backward()
            run[0] += 1
            return loss

        optimizer.step(closure)
    return img.detach()
