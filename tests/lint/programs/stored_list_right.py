# https://github.com/TRI-ML/packnet-sfm/pull/51
import torch


class Trainer:
    def __init__(self, module, optimizer):
        self.module = module
        self.optimizer = optimizer
        self.log = {}

    def train(self, dataloader):
        outputs = []
        for i, batch in enumerate(dataloader):
            self.optimizer.zero_grad()
            output = self.module.training_step(batch, i)
            output["loss"].backward()
            self.optimizer.step()
            output["loss"] = output["loss"].detach()
            outputs.append(output["loss"])
            self.log["last"] = output["loss"]
        return torch.stack(outputs).mean()
