# Written after the rules were, in other styles than those they were made with.
import torch
def style(vgg, content, style, steps):
    img = content.clone().requires_grad_(True)
    opt = torch.optim.LBFGS([img])
    with torch.no_grad():
        target = vgg(style)
    for _ in range(steps):
        def closure():
            opt.zero_grad()
            loss = (vgg(img) - target).pow(2).mean()
            loss.backward()
            return loss
        opt.step(closure)
    return img.detach()
