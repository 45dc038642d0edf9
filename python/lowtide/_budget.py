from __future__ import annotations

import os
from typing import Any, Callable, Union

import torch

from lowtide import _core, _saved_tensors
from lowtide._modules import ModuleHooks
from lowtide.errors import UsageError

Limit = Union[int, str]


def _bytes_of(limit: Limit | None) -> int:
    return 0 if limit is None else _core.parse_bytes(limit) if isinstance(limit, str) else limit


class Budget:
    """A limit on the bytes of CPU tensors, in force inside ``with``. Made by ``budget``."""

    def __init__(
        self,
        limit: Limit | None,
        *,
        check_replays: bool = True,
        verify_replay: bool = False,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        trace: str | os.PathLike[str] | None = None,
        tape: str | os.PathLike[str] | None = None,
        spill: str | os.PathLike[str] | None = None,
        spill_limit: Limit | None = None,
        reserve: Limit | None = None,
        pack: bool = False,
        always_put_away: bool = False,
        plan: str | os.PathLike[str] | None = None,
        plan_seconds: float = 1.0,
        batch_size: int | None = None,
    ) -> None:
        if limit is None and tape is not None:
            pass  # lowtide.record
        elif isinstance(limit, bool) or not isinstance(limit, (int, str)):
            raise UsageError(
                f"budget: a limit is a number of bytes or a text such as '6GiB' or '50%', not {limit!r} [LT0305]",
                "LT0305")
        elif isinstance(limit, int) and limit < 0:
            raise UsageError(f"budget: a limit cannot be negative, but is {limit} bytes [LT0305]", "LT0305")
        self._limit = limit
        self._options: dict[str, Any] = {
            "check_replays": check_replays,
            "verify_replay": verify_replay,
            "on_event": on_event,
            "trace_path": "" if trace is None else os.fspath(trace),
            "tape_path": "" if tape is None else os.fspath(tape),
            "spill_directory": "" if spill is None else os.fspath(spill),
            "spill_limit": _bytes_of(spill_limit),
            "reserve": _bytes_of(reserve),
            "pack": pack,
            "always_put_away": always_put_away,
            "plan_seconds": plan_seconds,
            "plan_path": "" if plan is None else os.fspath(plan),
        }
        self._modules = None if tape is None else ModuleHooks(batch_size)
        self._core: Any = None
        self._last_report: dict[str, Any] | None = None

    def start(self) -> Budget:
        """Puts the limit in force; what ``with`` does."""
        if self._core is not None:
            raise UsageError("budget: this budget is in force already; make another one [LT0310]", "LT0310")
        _saved_tensors.install()
        self._core = _core.MemoryBudget(self._limit, **self._options)
        if self._modules is not None:
            self._modules.install()
        return self

    def stop(self) -> None:
        """Takes the limit away; what the end of ``with`` does. Without effect when it is not in force."""
        if self._core is None:
            return
        self._last_report = self._core.report()
        self._core = None
        if self._modules is not None:
            self._modules.remove()

    __enter__ = start

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def attach(self, optimizer: Any) -> None:
        """Lets parameters, gradients and optimizer state be in the spill file while no op uses them.

        For a budget below what they take together. ``optimizer`` is a torch.optim.Optimizer. Until the budget ends,
        memory that is away can be read by ops only: ``data_ptr()``, ``numpy()`` and ``torch.save`` of a parameter
        raise RuntimeError then. Storages that the program holds otherwise (detached views, numpy arrays) never leave.

        Raises UsageError (LT0316) when the budget was made without ``spill``, LT0310 outside of its ``with``.
        """
        if self._core is None:
            raise UsageError("budget: attach() outside of the budget's `with` [LT0310]", "LT0310")
        tensors = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        self._core.attach(tensors)

    def mark_step(self) -> None:
        """A step ends here. From the first call on, only these calls end steps."""
        if self._core is None:
            raise UsageError("budget: mark_step() outside of the budget's `with` [LT0310]", "LT0310")
        self._core.mark_step()

    def report(self) -> dict[str, Any]:
        """What the budget did so far, or in all once it has ended.

        Keys: limit_bytes (in force; 0 while a share is still being measured), share, peak_bytes, resident_growth_bytes
        (of the process, since the budget began), outside_bytes (what of it are no tensors: kernels' scratch), steps, step_s (a
        list), drops, dropped_bytes, recomputed_ops, recompute_s, spilled_tensors, spilled_bytes, spill_wait_s (the
        program waited for the file), packed_tensors, packed_bytes (before), packed_into_bytes (after), pack_s,
        refusals, planned_steps (whole steps whose drops a plan chose), plan_departures (steps that went otherwise than
        the one they were planned by), plans (made), planning_s, smallest_budget_bytes and budget_lower_bound_bytes (of the largest step; 0 before one has ended),
        program_bytes and program_holds: what the program itself holds, as dicts of op, line ("" when not known; told
        from 1 MiB on), bytes, tensors.
        """
        if self._core is not None:
            return self._core.report()
        if self._last_report is None:
            raise UsageError("budget: report() before the budget was in force [LT0310]", "LT0310")
        return dict(self._last_report)

    def __repr__(self) -> str:
        state = "in force" if self._core is not None else "not in force"
        return f"lowtide.budget({self._limit!r}), {state}"


def budget(
    limit: Limit,
    *,
    check_replays: bool = True,
    verify_replay: bool = False,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    trace: str | os.PathLike[str] | None = None,
    tape: str | os.PathLike[str] | None = None,
    spill: str | os.PathLike[str] | None = None,
    spill_limit: Limit | None = None,
    reserve: Limit | None = None,
    pack: bool = False,
    always_put_away: bool = False,
    plan: str | os.PathLike[str] | None = None,
    plan_seconds: float = 1.0,
) -> Budget:
    """Keeps the bytes of CPU tensors within ``limit``, not for a moment above it.

        with lowtide.budget("6GiB") as b:
            train()
        print(b.report()["peak_bytes"])

    limit: bytes as int, or text: "6GiB", "500 MB", or "50%", which stands for
        static + 0.5 * (peak - static), both measured in the first two steps, which run without a limit.
    check_replays: compare each recomputed tensor with the checksum taken when it was dropped.
    verify_replay: for debugging: run every op twice at once and compare. Doubles the time.
    on_event: called with a dict (kind: drop, put_away, read_back, recompute, refusal, step; step, op, bytes,
        live_bytes, begin_s, duration_s) for each event. Must not make or free tensors.
    trace: a file of events in Chrome's trace format, written at the end.
    tape: a file for the tape of a step, as lowtide.record writes it.
    spill: a directory. Saved tensors that cannot be computed again, or that it takes longer to compute than to write
        and read, go to one file there, which has no name and is gone with the process.
    spill_limit: the file never grows beyond this, in bytes or as text; without it the disk is the limit.
    reserve: so much of the limit is left for memory that is not counted (see outside_bytes in the report).
    pack: saved tensors with at most two values (masks), or of many zeros (the results of relu and dropout), are packed
        in memory where that costs less than computing them again.
    always_put_away: for tests: whatever can be packed or spilled is, rather than computed again.
    plan: a plan that ``lowtide plan TAPE --budget B --plan FILE`` wrote, for the step on that tape. Steps that go like
        it follow the plan from the first on; others do not, and the report counts them (plan_departures).
    plan_seconds: from the second step on what to drop is planned, in at most so many seconds of processor time for each
        kind of step, and never more than a plain step's own. 0: nothing is planned.

    Results are those of the plain run, bit for bit. Tensors that the program can still reach are never taken away.
    Budgets may be nested: the lowest limit is in force, for the whole process. A forked child has none.

    Raises UsageError (LT0305) for a limit that cannot be read, LT0307 for a trace that cannot be written, LT0311 for a
    directory in which no spill file can be made; IoError (LT0102) or FormatError (LT0152 to LT0154) for a plan that
    cannot be read; later, from
    any op, BudgetError (LT0301) when nothing more can be given back. BudgetError is a torch.OutOfMemoryError, and its
    details["smallest_budget_bytes"] says what would do.
    """
    return Budget(
        limit, check_replays=check_replays, verify_replay=verify_replay, on_event=on_event, trace=trace, tape=tape,
        spill=spill, spill_limit=spill_limit, reserve=reserve, pack=pack, always_put_away=always_put_away, plan=plan,
        plan_seconds=plan_seconds)
