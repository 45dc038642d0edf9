# Multi-crop DINO loss: the teacher's centre is updated with grad mode on.
import torch
from torch import nn


class DinoLoss(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, dim))

    def forward(self, student_out, teacher_out):
        t = ((teacher_out - self.center) / 0.04).softmax(-1).detach()
        loss = -(t * student_out.log_softmax(-1)).sum(-1).mean()
        self.center = self.center * 0.9 + teacher_out.mean(0, keepdim=True) * 0.1  # expect: history-accumulated
        return loss


def train(student, teacher, loader):
    opt = torch.optim.AdamW([*student.parameters(), *teacher.parameters()])
    criterion = DinoLoss(65536)
    for a, b in loader:
        loss = criterion(student(a), teacher(b))
        opt.zero_grad()
        loss.backward()
        opt.step()
