# Feature distillation through hooks: the caught features are what the loss is made of, and overwritten. Right.
import torch


class Catch:
    def __init__(self, layer):
        self.out = None
        layer.register_forward_hook(self.hook)

    def hook(self, module, args, output):
        self.out = output


def train(student, teacher, loader, opt):
    s, t = Catch(student.layer3), Catch(teacher.layer3)
    teacher.requires_grad_(False)
    for x, y in loader:
        logits = student(x)
        with torch.no_grad():
            teacher(x)
        loss = torch.nn.functional.cross_entropy(logits, y) + (s.out - t.out).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
