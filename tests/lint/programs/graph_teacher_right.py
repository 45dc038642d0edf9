# https://pytorch.org/tutorials/beginner/knowledge_distillation_tutorial.html
import torch
import torch.nn.functional as F


def distill(student, teacher, loader, optimizer, T=4.0):
    teacher.eval()
    student.train()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.no_grad():
            t = teacher(x)
        s = student(x)
        soft = F.kl_div(F.log_softmax(s / T, 1), F.softmax(t / T, 1), reduction="batchmean")
        loss = soft + F.cross_entropy(s, y)
        loss.backward()
        optimizer.step()
