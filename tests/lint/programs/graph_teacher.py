# A question asked often in the forums; after no single report.
import torch
import torch.nn.functional as F


def distill(student, teacher, loader, optimizer, T=4.0):
    teacher.eval()
    student.train()
    for x, y in loader:
        s = student(x)
        t = teacher(x)  # expect: graph-not-needed peak
        soft = F.kl_div(F.log_softmax(s / T, 1), F.softmax(t.detach() / T, 1), reduction="batchmean")
        loss = soft + F.cross_entropy(s, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
