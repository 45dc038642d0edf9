"""The peak of a training step at a batch that is not run: from real steps on small slices of it."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import time
from typing import Any, Callable, Iterator

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lowtide import _core
from lowtide._batch import Batch, fresh
from lowtide._fake_run import FakeRun
from lowtide._kept_state import KeptState, reachable
from lowtide._meter import meter
from lowtide._modules import ModuleNames
from lowtide.errors import UsageError

MOST_STEPS = 4  # of the first trial, to see whether the peak still grows after the second
MOST_TRIALS = 6
MOST_SECONDS = 20.0  # of all trials together, where the smallest slices allow it
# Off the line by no more than this the trials are enough.
GOOD_ENOUGH = 0.002
LEAST_ERROR_BOUND = 0.005  # for kernels that choose another way at another size


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What training steps take at a batch size. Bytes are absolute, as ``lowtide.meter().peak_bytes`` counts them."""

    batch_size: int
    peak_bytes: int
    by_kind: dict[str, int]
    """What fills the peak; adds up to peak_bytes. Keys as in ``Meter.by_kind``."""
    by_phase: dict[str, int]
    """The highest in each of forward, backward and optimizer."""
    by_module: dict[str, int]
    """What fills the peak by the module that made it, with "[rest]" for what no module did; adds up to peak_bytes."""
    error_bound: float
    """The counted peak is expected within this part of peak_bytes: 0.01 for 1 %."""
    slices: list[int]
    """The batch sizes that were run."""
    way: str
    """ "slices": real steps on small slices. "whole": the batch itself was run, being as small. "fake": without running."""
    phase: str
    """In which phase of the step the peak is, and in which op of which module."""
    op: str
    module: str
    notes: list[str]
    """What the prediction rests on that may not hold, for people."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class _Trials:
    """Runs ``step`` on slices of ``batch``, and leaves everything as it was."""

    def __init__(self, step: Callable[[Any], Any], batch: Batch) -> None:
        self.step = step
        self.batch = batch
        self.kept = KeptState(step)
        self.names = ModuleNames()
        self.names.add(self.kept.modules.values())
        self.saw_optimizer = False
        self._is_measured = False

    def mark(self) -> None:
        for tensor in self.kept.parameters():
            name = self.names.of_tensor.get(id(tensor), "")
            _core.mark_block(tensor.detach(), "parameters", name)
            if tensor.grad is not None:
                _core.mark_block(tensor.grad.detach(), "gradients", name)
        for module in self.kept.modules.values():
            for buffer in module._buffers.values():
                if buffer is not None and buffer.device.type == "cpu":
                    _core.mark_block(buffer.detach(), "program", self.names.of_tensor.get(id(buffer), ""))
            for parameter in module._parameters.values():
                if parameter is not None and not parameter.requires_grad:
                    _core.mark_block(parameter.detach(), "parameters", self.names.of_tensor.get(id(parameter), ""))
        for optimizer in self.kept.optimizers.values():
            for parameter, state in optimizer.state.items():
                name = self.names.of_tensor.get(id(parameter), "")
                for value in state.values() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        _core.mark_block(value.detach(), "optimizer_state", name)

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        self.kept.note_module(module)
        if self._is_measured:
            _core.enter_module(self.names.of(module))

    def _leave(self, module: torch.nn.Module, *_: Any) -> None:
        if self._is_measured:
            _core.leave_module()

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.saw_optimizer = True
        self.kept.note_optimizer(optimizer)
        if self._is_measured:
            self.mark()
            _core.set_in_optimizer(True)

    def _after_optimizer(self, *_: Any) -> None:
        if self._is_measured:
            _core.set_in_optimizer(False)
            self.mark()

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer)]
        was_collecting = gc.isenabled()
        gc.disable()  # cycles go between steps, so that every trial does the same
        freezes = gc.get_freeze_count() == 0
        if freezes:
            gc.collect()
            gc.freeze()  # what was there before is not looked at each time
        try:
            yield
        finally:
            self.kept.put_back()
            if freezes:
                gc.unfreeze()
            if was_collecting:
                gc.enable()
            for handle in handles:
                handle.remove()

    def run(self, count: int, steps: int) -> tuple[Any, float]:
        """The log of ``steps`` steps on ``count`` samples, and the seconds of the last."""
        self.kept.rewind()
        nest = self.batch.slice(count)
        gc.collect()
        seconds = 0.0
        self.mark()
        self._is_measured = True
        _core.start_allocation_log()
        try:
            for _ in range(steps):
                begin = time.perf_counter()
                self.step(fresh(nest))
                seconds = time.perf_counter() - begin
                gc.collect()
                _core.end_logged_step()
        except Exception as error:
            if hasattr(error, "add_note"):
                error.add_note(f"lowtide.predict ran this step on {count} of {self.batch.size} samples")
            raise
        finally:
            self._is_measured = False
            log = _core.stop_allocation_log()
        log.batch_size = count
        return log, seconds


def _available_bytes() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 << 30


def _slices(size: int, first: Any, seconds: float, steps: int) -> list[int]:
    """Which batch sizes to run, for a batch of ``size``, after the log ``first`` of 2 samples."""
    growth = max(1, *first.step_peaks())
    # What 2 samples took, taken for theirs alone, so at least enough.
    by_time = int(MOST_SECONDS / max(1e-6, 3 * steps * seconds / 2))
    by_memory = _available_bytes() // 4 // max(1, growth // 2)
    return small_sizes(size, max(6, min(by_time, by_memory)))


class _Collected:
    """Logs of slices, ascending, and what is known of the steps."""

    def __init__(self, trials: _Trials, sizes_for: Callable[[Any, float, int], list[int]], most: int) -> None:
        first, seconds = trials.run(2 if most > 2 else most, MOST_STEPS)
        peaks = first.step_peaks()
        self.steps = 2
        for index in range(2, len(peaks)):
            if peaks[index] > max(peaks[:index]):
                self.steps = index + 1
        self.grows = self.steps == MOST_STEPS
        self.trials = trials
        self.seconds = seconds
        self.logs: list[Any] = []
        for size in sizes_for(first, seconds, self.steps):
            self.add(size)

    def add(self, size: int) -> None:
        log, _ = self.trials.run(size, self.steps)
        self.logs = sorted([*self.logs, log], key=lambda one: one.batch_size)

    @property
    def sizes(self) -> list[int]:
        return [log.batch_size for log in self.logs]

    def fit(self, size: int) -> dict[str, Any]:
        return _core.fit_peak(self.logs, size)

    def refine(self, size: int) -> dict[str, Any]:
        """Adds slices until the fit at ``size`` is good enough, or they come near to it."""
        fit = self.fit(size)
        if fit["rounded_points"]:
            half = size // 2 if size % 8 else size // 2 - size // 2 % 8
            if half > self.sizes[-1] and self._is_affordable(half):
                self.add(half)
                fit = self.fit(size)
        while fit["scattered_points"] and len(self.logs) < MOST_TRIALS:
            more = self._next(size)
            if more is None:
                break
            self.add(more)
            fit = self.fit(size)
            if fit["error_bound"] <= GOOD_ENOUGH and len(self.logs) > 4:
                break
        return fit

    def _is_affordable(self, count: int) -> bool:
        """In time, and in memory by what the largest log took."""
        growth = max(self.logs[-1].step_peaks()) / self.logs[-1].batch_size * count
        return count * self.seconds / 2 * self.steps < MOST_SECONDS / 4 and growth < _available_bytes() / 4

    def _next(self, size: int) -> int | None:
        sizes = self.sizes
        larger = sizes[-1] + max(1, (sizes[-1] - sizes[0]) // 2)
        if larger * 2 <= size and self._is_affordable(larger):
            return larger
        between = (sizes[0] + sizes[1]) // 2
        for other in (between, (sizes[-1] + sizes[-2]) // 2, sizes[-1] + 1, sizes[0] - 1, sizes[-1] + 2):
            if 2 <= other < size and other not in sizes:
                return other
        return None


def _error_bound(fit: dict[str, Any], peak: int) -> float:
    grows = max(0, fit["growth_bytes"]) / max(1, peak)
    if fit["way"] == "allocations" and not fit["scattered_points"] and not fit["rounded_points"]:
        return LEAST_ERROR_BOUND
    least = 2 * LEAST_ERROR_BOUND if fit["way"] == "allocations" else 6 * LEAST_ERROR_BOUND
    return min(1.0, max(least, 2 * fit["error_bound"] * grows))


def small_sizes(size: int, most: int = 12) -> list[int]:
    """Batch sizes up to ``most`` to run for one of ``size``: evenly apart, up to three eighths of it, and, where there
    is room for that, as divisible by two as it is, so that a step that splits its batch does so here too."""
    if size <= 3:
        return [size]
    if size < 12:
        return [2, 3, 4][:size - 2]
    apart = max(2, min(size // 8, most // 3))
    power = 1
    while size % (power * 2) == 0 and power * 2 <= apart:
        power *= 2
    apart -= apart % power
    return [apart, 2 * apart, 3 * apart]


def notes_of(fit: dict[str, Any]) -> list[str]:
    notes = []
    if fit["way"] == "aligned":
        notes.append("the step does not run the same ops at every batch size (branches or loops on its data, or kernels that "
                     "choose): what differs was taken at its highest")
    elif fit["way"] == "phases":
        notes.append("the step runs quite different ops at other batch sizes: only the peaks of its phases were compared")
    if fit["curved_points"]:
        notes.append("part of the memory grows with the square of the batch")
    if fit["rounded_points"]:
        notes.append("kernels round their workspace up to whole pages: small batches tell it less exactly")
    elif fit["scattered_points"]:
        notes.append("sizes depend on the data, not on the batch size alone: see error_bound")
    return notes


def _notes(fit: dict[str, Any], collected: _Collected) -> list[str]:
    notes = notes_of(fit)
    if collected.grows:
        notes.append(f"the peak still grows in step {collected.steps}: later steps may take more")
    if not collected.trials.saw_optimizer:
        notes.append("no optimizer of torch.optim took a step")
    return notes


def prediction_of(size: int, fit: dict[str, Any], base: int, way: str, sizes: list[int], notes: list[str]) -> Prediction:
    bound = _error_bound(fit, base + fit["growth_bytes"])
    peak = base + max(0, fit["growth_bytes"])
    kinds = dict(fit["by_kind"])
    kinds["program"] = 0
    over = sum(kinds.values()) - peak
    kinds["program"] = max(0, -over)
    if over > 0:  # parts that scatter, fitted apart
        kinds = {kind: count * peak // (peak + over) for kind, count in kinds.items()}
        kinds["program"] += peak - sum(kinds.values())
    modules = {name: count for name, count in fit["by_module"] if name}
    total = sum(modules.values())
    if total > peak:
        modules = {name: count * peak // total for name, count in modules.items()}
    rest = peak - sum(modules.values())
    return Prediction(
        batch_size=size, peak_bytes=peak, by_kind=kinds,
        by_phase={phase: base + max(0, growth) for phase, growth in fit["growth_by_phase"].items()},
        by_module={**modules, "[rest]": rest}, error_bound=bound, slices=sizes, way=way, phase=fit["phase"], op=fit["op"],
        module=fit["module"], notes=notes)


def predict(step: Callable[[Any], Any], batch: Any, *, way: str = "auto") -> Prediction:
    """The peak of training steps on ``batch``, without running them at that size.

        def step(batch):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()

        p = lowtide.predict(step, batch)
        print(p.peak_bytes, p.by_kind, p.error_bound)

    ``step`` runs one training step on a nest (tensor, list, tuple, dict, dataclass, and nests of them) of tensors whose
    first dimension is the batch. It is run a few times on two to six small slices of ``batch``; the bytes live after
    each allocation are drawn as lines through them, and the peak is the highest of the lines' ends. So nothing as large
    as the whole is allocated, neither here nor, if ``batch`` is on the meta device or expanded, for the batch itself. A
    batch of up to three samples is run as it is.

    Peaks are those of the steps from now on: the optimizer's state, made in the first step, counts. Afterwards
    parameters, buffers, gradients, optimizers, schedulers, scalers and generators that the step reaches are as they were,
    the very tensors; optimizer state that was made is gone. What else the step changes (counters in closures, files) is
    not undone. Beside the slices a copy of the parameters is held meanwhile, not counted by ``meter``.

    way: "slices", as above; "fake", for models that cannot run here at all: parameters and the batch are exchanged for
        tensors without contents (on the meta device), and the step runs on them at full size. That takes no memory, and
        sees neither what kernels need inside nor what depends on contents: error_bound is wide, and notes say what was
        guessed. "auto": "fake" when a parameter that the step reaches is on the meta device, else "slices".

    Raises UsageError: LT0331 inside a budget or another prediction; LT0332 for a batch that cannot be sliced. What
    ``step`` raises passes through.
    """
    if way not in ("auto", "slices", "fake"):
        raise UsageError(f'predict: way is "auto", "slices" or "fake", not {way!r} [LT0332]', "LT0332")
    gc.collect()  # models that are garbage are not kept
    whole = Batch(batch)
    size = whole.size
    if way == "fake" or way == "auto" and _is_without_contents(step):
        return _fake_prediction(step, whole)
    trials = _Trials(step, whole)
    with trials.hooked():
        if size <= 3:
            collected = _Collected(trials, lambda *_: [size], size)
            fit = collected.fit(size)
        else:
            collected = _Collected(trials, lambda *args: _slices(size, *args), size)
            fit = collected.refine(size)
    notes = whole.notes + trials.kept.notes + _notes(fit, collected)
    sizes = collected.sizes
    del collected, trials
    gc.collect()
    base = meter().live_bytes + (whole.bytes_of(size) if whole.is_meta else 0)
    return prediction_of(size, fit, base, "whole" if sizes == [size] else "slices", sizes, notes)


def _is_without_contents(step: Callable[[Any], Any]) -> bool:
    return any(isinstance(value, torch.nn.Module) and any(p.is_meta for p in value.parameters(recurse=False))
               for value in reachable(step))


FAKE_ERROR_BOUND = 0.3


def _fake_prediction(step: Callable[[Any], Any], whole: Batch) -> Prediction:
    run = FakeRun(step, whole)
    log = run.run()
    notes = whole.notes[:0] + run.notes()
    if not run.saw_optimizer:
        notes.append("no optimizer of torch.optim took a step")
    missing = run.missing_bytes
    del run
    gc.collect()
    base = meter().live_bytes + missing + (whole.bytes_of(whole.size) if whole.is_meta else 0)
    fit = _core.fit_peak([log], whole.size)
    return dataclasses.replace(prediction_of(whole.size, fit, base, "fake", [], notes), error_bound=FAKE_ERROR_BOUND)


MOST_SAMPLES = 1 << 32


def largest_batch(step: Callable[[Any], Any], batch: Any, budget: int | str) -> int:
    """The largest batch size at which training steps stay within ``budget`` bytes; 0 when one sample does not.

        lowtide.largest_batch(step, batch, "24GiB")

    As ``predict``, but the batch gives samples only: larger ones have them several times over. ``batch`` itself is
    taken to be gone then, so only the larger batch counts. Where the fit is not exact (``Prediction.error_bound``), its
    error is left free.
    """
    limit = _core.parse_bytes(budget) if isinstance(budget, str) else budget
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise UsageError(f"largest_batch: a budget is a number of bytes or a text such as '6GiB', not {budget!r} [LT0305]",
                         "LT0305")
    gc.collect()
    whole = Batch(batch)
    trials = _Trials(step, whole)
    with trials.hooked():
        collected = _Collected(trials, lambda first, seconds, steps: _slices(max(16, whole.size), first, seconds, steps),
                               MOST_SAMPLES)
        trials.kept.put_back()
        gc.collect()
        # What the trials' own copies take is no part of it.
        live = meter().live_bytes - whole.counted_bytes()

        def fits_at(size: int) -> bool:
            fit = collected.fit(size)
            growth = max(0, fit["growth_bytes"])
            if fit["scattered_points"] or fit["way"] != "allocations":
                growth += int(growth * fit["error_bound"])
            return live + whole.bytes_of(size) + growth <= limit

        answer = _largest(fits_at)
        # Nearer slices tell more, as far as time allows.
        per_sample = collected.seconds / 2
        for _ in range(2):
            near = answer // 2
            if near <= collected.sizes[-1] * 3 // 2 or near * per_sample * collected.steps > MOST_SECONDS / 4:
                break
            collected.add(near)
            answer = _largest(fits_at)
    return answer


def _largest(fits: Callable[[int], bool]) -> int:
    low, high = 0, 1
    while high < MOST_SAMPLES and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
