# https://github.com/TRI-ML/packnet-sfm/issues/47
import torch


class HorovodTrainer:
    def __init__(self, module, optimizer):
        self.module = module
        self.optimizer = optimizer

    def train(self, dataloader):
        self.module.train()
        outputs = []
        for i, batch in enumerate(dataloader):
            self.optimizer.zero_grad()
            output = self.module.training_step(batch, i)
            output["loss"].backward()
            self.optimizer.step()
            outputs.append(output)  # expect: history-stored creep
        return self.module.training_epoch_end(outputs)
