# Written after the rules were, in other styles than those they were made with.
import torch
class Trainer:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        self.history = []
    def step(self, x, y):
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss
    def fit(self, loader, epochs):
        for _ in range(epochs):
            running = 0.0
            for x, y in loader:
                running += self.step(x, y)  # expect: history-accumulated
            self.history.append(running.item() / len(loader))
