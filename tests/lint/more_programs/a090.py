# Distillation: the teacher's graph is built and detached.
import torch
import torch.nn.functional as F


def distill(student, teacher, loader, T=4.0):
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    teacher.eval()
    for x, y in loader:
        s = student(x)
        t = teacher(x)  # expect: graph-not-needed
        loss = F.cross_entropy(s, y) + T * T * F.kl_div(
            F.log_softmax(s / T, 1), F.softmax(t / T, 1).detach(), reduction="batchmean"
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
