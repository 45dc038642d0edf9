# An explainer: the masks that are trained are put into the model by a function of another package. Right.
import torch
from explain import clear_masks, set_masks


def explain(model, x, edge_index, edge_features, target, steps):
    gate = torch.nn.Linear(16, 1)
    opt = torch.optim.Adam(gate.parameters(), lr=0.01)
    for _ in range(steps):
        mask = gate(edge_features).sigmoid()
        set_masks(model, mask)
        loss = torch.nn.functional.cross_entropy(model(x, edge_index), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
    clear_masks(model)
    with torch.no_grad():
        return gate(edge_features).sigmoid()
