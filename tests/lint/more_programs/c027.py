# Right: the centre under no_grad, the teacher too.
import torch
from torch import nn


class DinoLoss(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, dim))

    def forward(self, student_out, teacher_out):
        t = ((teacher_out - self.center) / 0.04).softmax(-1)
        loss = -(t * student_out.log_softmax(-1)).sum(-1).mean()
        self.update(teacher_out)
        return loss

    @torch.no_grad()
    def update(self, teacher_out):
        self.center = self.center * 0.9 + teacher_out.mean(0, keepdim=True) * 0.1


def train(student, teacher, loader):
    opt = torch.optim.AdamW(student.parameters())
    criterion = DinoLoss(65536)
    for a, b in loader:
        with torch.no_grad():
            t = teacher(b)
        loss = criterion(student(a), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
