"""Trains one model of the zoo plainly and inside limits, and compares everything, bit for bit."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import random
import time
from typing import Any, Callable

import numpy
import torch

import lowtide

STEPS = 3
FRACTIONS = (1.0, 0.5, 0.25)
Case = Callable[[], tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]]


@dataclasses.dataclass
class Run:
    """Bytes are those beside what was live before the run."""

    losses: list[float]
    state: list[torch.Tensor]  # parameters, buffers, generator
    peak_bytes: int
    static_bytes: int  # live after the last step
    processor_s: float
    report: dict[str, Any]


class Refused(Exception):
    """``smallest`` as Run's bytes."""

    def __init__(self, error: lowtide.BudgetError, base: int) -> None:
        super().__init__(str(error))
        self.smallest = error.details["smallest_budget_bytes"] - base
        self.is_bound = bool(error.details["smallest_budget_is_bound"])


def train(case: Case, limit: int | None = None) -> Run:
    """Trains a new model for STEPS steps, with at most ``limit`` bytes."""
    gc.collect()
    meter = lowtide.meter()
    base = meter.live_bytes
    torch.manual_seed(0)
    model, loss_of = case()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    numpy.random.seed(1)
    random.seed(1)
    losses, static = [], 0
    budget = None if limit is None else lowtide.budget(limit + base)
    start = time.process_time()
    try:
        with budget or contextlib.nullcontext():
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = loss_of(model)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                del loss
                static = meter.live_bytes
    except lowtide.BudgetError as error:
        raise Refused(error, base) from None
    processor_s = time.process_time() - start
    peak = meter.peak_bytes
    state = [t.detach().clone() for t in (*model.parameters(), *model.buffers())] + [torch.get_rng_state()]
    report = budget.report() if budget else {}
    for key in ("smallest_budget_bytes", "budget_lower_bound_bytes"):
        if report.get(key):
            report[key] -= base
    return Run(losses, state, peak - base, static - base, processor_s, report)


def same(a: Run, b: Run) -> bool:
    return a.losses == b.losses and len(a.state) == len(b.state) and all(
        x.equal(y) or (x.isnan() == y.isnan()).all() and x.nan_to_num().equal(y.nan_to_num())
        for x, y in zip(a.state, b.state))
