"""Lowtide keeps PyTorch training below its high-water mark.

    import lowtide

    with lowtide.budget("6GiB") as b:
        for batch in loader:
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    print(b.report())

Tensor bytes on the CPU stay within the budget: what autograd saved is dropped and computed again when backward asks
for it, bit for bit. Or the allocation is refused with BudgetError, which names the smallest budget that would do.

From ``import lowtide`` on all CPU tensors of the process are counted: see ``meter``.
"""

from __future__ import annotations

import sys

# `python -m lowtide run ...` prepares another process; this one needs no torch.
if sys.argv[:1] != ["-m"] or sys.orig_argv[1:3] != ["-m", "lowtide"]:
    from lowtide import _load

    _load.load()

    from lowtide import _core, compat, nn, ops
    from lowtide._budget import Budget, budget
    from lowtide._checkpoint import checkpoint, checkpoint_sequential, checkpoint_wrapper
    from lowtide._large_layers import (
        FactorisedComparison, checkpointed_mlp, compare_factorised, factorise, factorised_linear, linear_cross_entropy)
    from lowtide._meter import Meter, meter
    from lowtide._predict import Prediction, largest_batch, predict
    from lowtide._record import record
    from lowtide._sequence import ScanReport, detach_state, scan, scan_cell, truncated_bptt
    from lowtide._watch import Watch, watch
    from lowtide.errors import (
        AllocationError, BudgetError, DivergenceError, Error, FormatError, InternalError, IoError, TorchError,
        UsageError)

    __version__: str = _core.version

    __all__ = [
        "AllocationError", "Budget", "BudgetError", "DivergenceError", "Error", "FactorisedComparison", "FormatError",
        "InternalError", "IoError", "Meter", "Prediction", "ScanReport", "TorchError", "UsageError", "Watch", "budget",
        "checkpoint", "checkpoint_sequential", "checkpoint_wrapper", "checkpointed_mlp", "compare_factorised",
        "compat", "detach_state", "factorise", "factorised_linear", "largest_batch", "linear_cross_entropy", "meter",
        "nn", "ops", "predict", "record", "scan", "scan_cell", "truncated_bptt", "watch"]

    if globals().pop("start_session", False):  # set by _inject/sitecustomize.py
        from lowtide import _session

        _session.start()
