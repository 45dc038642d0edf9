from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, TypeVar

from torch.optim.optimizer import register_optimizer_step_post_hook

from lowtide import _core
from lowtide.errors import UsageError

Item = TypeVar("Item")


class Watch:
    """Names what grows from step to step, inside ``with``. Made by ``watch``."""

    def __init__(self, *, on_finding: Callable[[dict[str, Any]], None] | None = None) -> None:
        self._listener = None if on_finding is None else (lambda finding, text: on_finding(finding))
        self._core: Any = None
        self._hook: Any = None
        self._last: tuple[dict[str, Any], str, str] | None = None

    def start(self) -> Watch:
        """Begins to watch; what ``with`` does."""
        if self._core is not None:
            raise UsageError("watch: this watch is on already; make another one [LT0320]", "LT0320")
        core = _core.StepWatch(self._listener)
        self._hook = register_optimizer_step_post_hook(lambda *_: core.optimizer_stepped())
        self._core = core
        return self

    def stop(self) -> None:
        """Ends it; what the end of ``with`` does. Without effect when it is not on."""
        if self._core is None:
            return
        self._last = self._core.report(), self._core.text(), self._core.json()
        self._hook.remove()
        self._core = self._hook = None

    __enter__ = start

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def step(self) -> None:
        """A step ends here. From the first call on, only these calls end steps: for loops without a backward."""
        if self._core is None:
            raise UsageError("watch: step() outside of the watch's `with` [LT0320]", "LT0320")
        self._core.step()

    def steps(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with a step after each: ``for batch in watch.steps(loader): ...``."""
        for item in items:
            yield item
            del item
            self.step()

    def _taken(self) -> tuple[dict[str, Any], str, str]:
        if self._core is not None:
            return self._core.report(), self._core.text(), self._core.json()
        if self._last is None:
            raise UsageError("watch: report() before the watch was on [LT0320]", "LT0320")
        return self._last

    def report(self) -> dict[str, Any]:
        """What was found so far, or in all once it has ended.

        Keys: steps, ops, findings: a list of dicts of kind (graph_carried, graph_kept, tensors_kept, held_at_peak),
        alarm (False: a note), step, op, line, stored_at, held_by, chain, bytes_per_step, nodes_per_step, graph_nodes,
        peak_bytes, fall_bytes, fix. docs/habits.md says what each means.
        """
        return self._taken()[0]

    def text(self) -> str:
        """The report for people."""
        return self._taken()[1]

    def json(self) -> str:
        """The report as JSON, with the keys of ``report``."""
        return self._taken()[2]

    def __repr__(self) -> str:
        return f"lowtide.watch(), {'on' if self._core is not None else 'off'}"


def watch(*, on_finding: Callable[[dict[str, Any]], None] | None = None) -> Watch:
    """Names what grows from step to step while a program trains: the line, what keeps it, and how to mend it.

        with lowtide.watch() as w:
            train()
        print(w.text())

    on_finding: called with a dict, as in ``report()["findings"]``, for each finding when it is made. Must not run ops.
        Without it, alarms go to stderr, one line each.

    A step ends where a graph begins to grow after a backward, or, once a torch optimizer has stepped, after an
    optimizer's step; or where ``Watch.step`` says so, which loops without a backward need. What rose four times since
    it last fell, and rises still, is named. Optimizer state, gradient accumulation, caches that fill and stop, and
    detached tensors in containers (logs, replay buffers) are no alarms; the last are notes in the report.

    Nothing is registered when it is off. CPU tensors; the whole process; a forked child has none.
    Raises TorchError (LT0602) when another tool's allocator is in the place of Lowtide's.
    """
    return Watch(on_finding=on_finding)
