# Frozen teacher. Right.
import torch
import torch.nn.functional as F


def distill(student, teacher, loader, T=4.0):
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    teacher.eval().requires_grad_(False)
    for x, y in loader:
        s = student(x)
        t = teacher(x)
        loss = F.kl_div(F.log_softmax(s / T, 1), F.softmax(t / T, 1), reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
