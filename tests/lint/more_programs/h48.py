# Written after the rules were, in other styles than those they were made with.
import torch
def train(teacher, student, loader, opt):
    teacher.eval()
    for x in loader:
        with torch.inference_mode():
            t = teacher(x)
        s = student(x)
        loss = (s - t.clone()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
