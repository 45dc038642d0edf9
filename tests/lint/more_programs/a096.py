# Diffusion training with a gradient-accumulating loop as in lucidrains' trainers. Right.
import torch


class Trainer:
    def __init__(self, diffusion, dl, accum=2):
        self.model = diffusion
        self.dl = dl
        self.accum = accum
        self.opt = torch.optim.Adam(diffusion.parameters(), lr=8e-5)
        self.step = 0

    def train(self, steps):
        while self.step < steps:
            total_loss = 0.0
            for _ in range(self.accum):
                data = next(self.dl)
                loss = self.model(data) / self.accum
                total_loss += loss.item()
                loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad()
            self.step += 1
            print(f"loss: {total_loss:.4f}")
