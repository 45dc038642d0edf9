# HF Trainer: compute_loss keeps what it logs.
import torch
from transformers import Trainer


class DistillTrainer(Trainer):
    def __init__(self, *args, teacher=None, alpha=0.5, **kwargs):
        super().__init__(*args, **kwargs)
        self.teacher = teacher.eval()
        self.alpha = alpha
        self.kd_history = []

    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
        with torch.no_grad():
            t_logits = self.teacher(**inputs).logits
        kd = torch.nn.functional.kl_div(
            outputs.logits.log_softmax(-1), t_logits.softmax(-1), reduction="batchmean"
        )
        self.kd_history.append(kd)  # expect: history-stored
        loss = self.alpha * kd + (1 - self.alpha) * outputs.loss
        return (loss, outputs) if return_outputs else loss
