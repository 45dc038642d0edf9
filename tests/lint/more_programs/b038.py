# Mean teacher through state_dicts, which have no graph. Right.
import torch


class MeanTeacher:
    def __init__(self, student, teacher, decay):
        self.student, self.teacher, self.decay = student, teacher, decay

    def follow(self):
        own, other = self.teacher.state_dict(), self.student.state_dict()
        for k, v in own.items():
            if v.dtype.is_floating_point:
                v.mul_(self.decay).add_(other[k], alpha=1 - self.decay)
        self.teacher.load_state_dict(own)
