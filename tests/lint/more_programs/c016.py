# Test script with a running confusion matrix, grad mode on.
import torch


class Tester:
    def __init__(self, net, loader, classes):
        self.net, self.loader = net, loader
        self.matrix = torch.zeros(classes, classes)

    def run(self):
        self.net.eval()
        for img, gt in self.loader:
            pred = self.net(img.cuda()).argmax(1).cpu()  # expect: eval-with-grad
            for p, g in zip(pred.view(-1), gt.view(-1)):
                self.matrix[g, p] += 1
        return self.matrix.diag() / self.matrix.sum(1)
