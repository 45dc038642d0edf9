# Knowledge distillation with an ensemble of teachers under autocast only.
import torch


def distill(student, teachers, loader, opt, kl):
    for x, _ in loader:
        with torch.autocast("cuda"):
            soft = torch.stack([t(x).softmax(-1) for t in teachers]).mean(0).detach()  # expect: graph-not-needed
            loss = kl(student(x).log_softmax(-1), soft)
        opt.zero_grad()
        loss.backward()
        opt.step()
