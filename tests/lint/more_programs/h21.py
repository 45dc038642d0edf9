# Written after the rules were, in other styles than those they were made with.
import torch
class Agent:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters())
    def learn(self, batch):
        q = self.net(batch.s)
        loss = (q - batch.t).pow(2).mean()
        loss.backward()  # expect: zero-grad-missing
        self.optimizer.step()
        return loss.item()
    def run(self, env):
        for ep in range(100):
            self.learn(env.batch())
