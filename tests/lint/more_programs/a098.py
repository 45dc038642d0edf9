# GNN full-batch training with a test function without no_grad.
import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv


class GCN(torch.nn.Module):
    def __init__(self, i, h, o):
        super().__init__()
        self.c1, self.c2 = GCNConv(i, h), GCNConv(h, o)

    def forward(self, x, edge_index):
        return self.c2(F.relu(self.c1(x, edge_index)), edge_index)


def main(data):
    model = GCN(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def train():
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        return float(loss)

    def test():
        model.eval()
        pred = model(data.x, data.edge_index).argmax(-1)  # expect: eval-with-grad
        return [int((pred[m] == data.y[m]).sum()) for m in (data.train_mask, data.test_mask)]

    for epoch in range(200):
        print(epoch, train(), test())
