# Mean teacher: the weights follow with grad mode on, in a helper with state_dict-free loops.
import torch


class MeanTeacher:
    def __init__(self, student, teacher, decay):
        self.student, self.teacher, self.decay = student, teacher, decay

    def follow(self):
        pairs = zip(self.teacher.parameters(), self.student.parameters())
        for t, s in pairs:
            t.mul_(self.decay)  # expect: update-with-grad
            t.add_((1 - self.decay) * s)
