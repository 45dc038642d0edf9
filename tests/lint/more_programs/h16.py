# Written after the rules were, in other styles than those they were made with.
import torch
class Meter:
    def __init__(self): self.vals = []
    def add(self, v): self.vals.append(float(v))
    def mean(self): return sum(self.vals) / len(self.vals)
def run(model, data_loader, optimizer, criterion):
    meter = Meter()
    for x, y in data_loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.add(loss)
    print(meter.mean())
