# Population-based training keeps deep copies of every generation.
import copy

import torch


def evolve(population, fitness, generations):
    hall = []
    for g in range(generations):
        for member in population:
            member.train_steps(100)
        best = max(population, key=fitness)
        hall.append(copy.deepcopy(best.model.state_dict()))  # expect: copies-accumulate
    return hall
