"""The budget of a whole process, or its watch, for ``lowtide run``: begins after torch was imported, ends with a
report."""

from __future__ import annotations

import atexit
import json
import os
import sys
from typing import Any

from torch.utils.data._utils import worker

import lowtide
from lowtide import _core, compat

_budget: lowtide.Budget | None = None
_watch: lowtide.Watch | None = None
_owner = 0


def start() -> None:
    """Puts the budget that the environment names in force, and begins to watch if it says so, once a process."""
    global _budget, _watch, _owner
    if _budget is not None or _watch is not None:
        return
    compat.fairscale.install()
    if "LOWTIDE_RUN_PREDICT" in os.environ:
        from lowtide import _logged_run

        _logged_run.start()
        return
    tape = os.environ.get("LOWTIDE_RUN_TAPE")
    if tape is not None:
        _budget = lowtide.record(_with_rank(tape)).start()
    elif "LOWTIDE_RUN_BUDGET" in os.environ:
        spill = os.environ.get("LOWTIDE_RUN_SPILL") or None
        plan = os.environ.get("LOWTIDE_RUN_PLAN") or None
        _budget = lowtide.budget(os.environ["LOWTIDE_RUN_BUDGET"], spill=spill, plan=plan).start()
    if "LOWTIDE_RUN_WATCH" in os.environ:
        _watch = lowtide.watch().start()
    _owner = os.getpid()
    worker._worker_loop = _loop_without_budget
    atexit.register(_finish)


_loop_of_workers = worker._worker_loop


def _loop_without_budget(*args: Any, **kwargs: Any) -> Any:
    """What a DataLoader's worker runs: it has no budget, also when it was not forked but started anew."""
    global _budget, _watch
    if os.getpid() == _owner:
        for one in (_budget, _watch):
            if one is not None:
                one.stop()
        _budget = _watch = None
    return _loop_of_workers(*args, **kwargs)


def _finish() -> None:
    if (_budget is None and _watch is None) or os.getpid() != _owner:  # a forked child has none
        return
    if "LOWTIDE_RUN_TAPE" in os.environ:
        assert _budget is not None
        _budget.stop()  # writes the tape, or says why not
        return
    report: dict[str, Any] = {}
    # The interpreter is about to end: what is dropped need not come back.
    if _budget is not None:
        report = _budget.report()
        print(report_text(report), file=sys.stderr)
    if _watch is not None:
        report["watch"] = _watch.report()
        print(f"lowtide: {_watch.text()}", end="", file=sys.stderr)
    path = os.environ.get("LOWTIDE_RUN_REPORT")
    if path:
        with open(_with_rank(path), "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
            file.write("\n")


def _with_rank(path: str) -> str:
    rank = os.environ.get("RANK", "0")
    if rank == "0":
        return path
    stem, extension = os.path.splitext(path)
    return f"{stem}.rank{rank}{extension}"


def report_text(report: dict[str, Any]) -> str:
    """The report for people, in a few lines."""
    size = _core.format_bytes
    limit = size(report["limit_bytes"]) if report["limit_bytes"] else "still being measured"
    lines = [f"lowtide: peak {size(report['peak_bytes'])} of tensors, budget {limit}, {report['steps']} steps"]
    if report["recomputed_ops"]:
        lines.append(
            f"lowtide: {report['drops']} tensors dropped ({size(report['dropped_bytes'])}), "
            f"{report['recomputed_ops']} ops run again in {report['recompute_s']:.2f} s")
    elif not report["spilled_tensors"] and not report["packed_tensors"]:
        lines.append("lowtide: nothing was dropped")
    if report["spilled_tensors"]:
        lines.append(
            f"lowtide: {report['spilled_tensors']} tensors spilled ({size(report['spilled_bytes'])}), "
            f"waited for the file {report['spill_wait_s']:.2f} s")
    if report["packed_tensors"]:
        lines.append(
            f"lowtide: {report['packed_tensors']} tensors packed ({size(report['packed_bytes'])} to "
            f"{size(report['packed_into_bytes'])}) in {report['pack_s']:.2f} s")
    if report["refusals"]:
        lines.append(f"lowtide: {report['refusals']} allocations refused")
    if report["smallest_budget_bytes"]:
        lines.append(f"lowtide: the smallest budget known to carry the largest step is "
                     f"{size(report['smallest_budget_bytes'])} ({report['smallest_budget_bytes']} bytes)")
    return "\n".join(lines)
