"""Trains a model plainly and inside a limit, and compares everything bit for bit."""

from __future__ import annotations

import gc
from typing import Any, Callable

import torch

import lowtide

Body = Callable[[], list[Any]]


def measured(body: Body) -> tuple[list[Any], int, int]:
    """Runs ``body`` with the generator set; returns its results, its peak above what was live, and that."""
    gc.collect()
    torch.manual_seed(7)
    meter = lowtide.meter()
    base = meter.live_bytes
    results = body()
    return results, meter.peak_bytes - base, base


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.equal(b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    return a == b


def check_same(body: Body, fraction: float = 0.6, drops: bool = True, most: float = 1.0) -> dict[str, Any]:
    """Asserts that ``body`` gives the same inside ``fraction`` of its plain peak, or, if that is refused, inside the
    smallest limit that refusals lead to, at most ``most`` times the plain peak. Returns the budget's report."""
    plain, peak, _ = measured(body)
    gc.collect()
    base = lowtide.meter().live_bytes
    limit = base + int(fraction * peak)
    for _ in range(60):
        try:
            with lowtide.budget(limit) as budget:
                inside, _, _ = measured(body)
            break
        except lowtide.BudgetError as error:
            assert error.details["smallest_budget_bytes"] > limit
            limit = error.details["smallest_budget_bytes"]
        gc.collect()
    report = budget.report()
    assert limit <= base + int(most * peak)
    assert equal(plain, inside)
    assert report["peak_bytes"] <= limit
    if drops:
        assert report["drops"] > 0, report
    return report


def check_same_dropped(body: Callable[[Callable[[], None]], list[Any]], verify: bool = False) -> dict[str, Any]:
    """Asserts that ``body(drop_all)`` gives the same in a budget with room, where ``drop_all()`` drops what may be
    dropped, as plainly, where it does nothing. Returns the budget's report."""
    room = 1 << 30

    def drop_all() -> None:
        try:
            torch.empty(room, dtype=torch.uint8)
        except lowtide.BudgetError:
            pass

    plain, _, base = measured(lambda: body(lambda: None))
    gc.collect()
    with lowtide.budget(base + room, verify_replay=verify) as budget:
        inside, _, _ = measured(lambda: body(drop_all))
    assert equal(plain, inside)
    return budget.report()
