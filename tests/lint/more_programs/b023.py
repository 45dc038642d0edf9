# Federated averaging: clients' models kept of every round.
import copy

import torch


def local_update(model, loader, lr):
    opt = torch.optim.SGD(model.parameters(), lr)
    for x, y in loader:
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    return model.state_dict()


def federate(global_model, clients, rounds):
    archive = []
    for r in range(rounds):
        states = []
        for loader in clients:
            states.append(local_update(copy.deepcopy(global_model), loader, 0.01))
        merged = {k: torch.stack([s[k].float() for s in states]).mean(0) for k in states[0]}
        global_model.load_state_dict(merged)
        archive.append(copy.deepcopy(global_model))  # expect: copies-accumulate
    return archive
