# After what a package does, or another kind than those before.
from torch import nn
class Net(nn.Module):
    def __init__(self, ch=128, size=512, hidden=2048):
        super().__init__()
        self.fc = nn.Linear(ch * size * size, hidden)  # expect: huge-linear
