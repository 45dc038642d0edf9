from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

import torch
from torch.utils import _pytree as pytree

from lowtide import _core
from lowtide.errors import UsageError

ScanReport = _core.ScanReport


class _Nest:
    """The shape of a nest of tensors: makes a list of it, and the nest again of a list."""

    def __init__(self, nest: Any, what: str, id: str) -> None:
        self._what, self._id = what, id
        self._spec = None
        if isinstance(nest, torch.Tensor):
            self.to_list, self.of_list = self._one, lambda tensors: tensors[0]
        elif type(nest) is tuple and all(isinstance(part, torch.Tensor) for part in nest):
            self._length = len(nest)
            self.to_list, self.of_list = self._tuple, tuple
        else:
            self._spec = pytree.tree_structure(nest)
            self.to_list, self.of_list = self._any, lambda tensors: pytree.tree_unflatten(tensors, self._spec)

    def _one(self, nest: Any) -> list[torch.Tensor]:
        if not isinstance(nest, torch.Tensor):
            self._refuse(nest)
        return [nest]

    def _tuple(self, nest: Any) -> list[torch.Tensor]:
        if type(nest) is not tuple or len(nest) != self._length:
            self._refuse(nest)
        for part in nest:
            if not isinstance(part, torch.Tensor):
                self._refuse(nest)
        return list(nest)

    def _any(self, nest: Any) -> list[torch.Tensor]:
        leaves, spec = pytree.tree_flatten(nest)
        if spec != self._spec:
            self._refuse(nest)
        for leaf in leaves:
            if leaf is not None and not isinstance(leaf, torch.Tensor):
                raise UsageError(
                    f"cannot scan with a {type(leaf).__name__} in {self._what}: only tensors, and None, can be kept "
                    f"and compared; make it a tensor, or capture it [{self._id}]", self._id)
        return leaves

    def _refuse(self, nest: Any) -> None:
        raise UsageError(
            f"cannot scan: {self._what} is not a nest like that of the step before, but {_outline(nest)} "
            f"[{self._id}]", self._id)


def _outline(nest: Any) -> str:
    if isinstance(nest, torch.Tensor):
        return "a tensor"
    if isinstance(nest, (list, tuple)):
        return f"a {type(nest).__name__} of {len(nest)}"
    return f"a {type(nest).__name__}"


def _adapted(
    step: Callable[..., Any], state: _Nest, inputs: _Nest | None, made: list[_Nest | None]
) -> Callable[[list[torch.Tensor], list[torch.Tensor]], tuple[list[torch.Tensor], list[torch.Tensor]]]:
    def run(given: list[torch.Tensor], parts: list[torch.Tensor]) -> Any:
        before = state.of_list(given)
        result = step(before) if inputs is None else step(before, inputs.of_list(parts))
        if not isinstance(result, tuple) or len(result) != 2:
            raise UsageError(
                f"cannot scan: a step must return (state, outputs), not {_outline(result)} [LT0222]", "LT0222")
        after, outputs = result
        if not made:
            made.append(None if outputs is None else _Nest(outputs, "the outputs", "LT0222"))
        nest = made[0]
        if nest is None:
            if outputs is not None:
                raise UsageError("cannot scan: a step gave outputs where the one before gave None [LT0222]", "LT0222")
            return state.to_list(after), []
        return state.to_list(after), nest.to_list(outputs)

    return run


def scan(
    step: Callable[..., tuple[Any, Any]],
    state: Any,
    inputs: Any = None,
    *,
    length: int | None = None,
    memory: int | str | None = None,
    generators: Sequence[torch.Generator] = (),
    report: ScanReport | None = None,
) -> tuple[Any, Any]:
    """Runs ``state, outputs[t] = step(state, inputs[t])`` for all t; returns the last state and the outputs, stacked.

    Backpropagation through it is exact and stays in ``memory``, however long the sequence: a few states are kept, no
    graph, and backward runs the steps between them again, as often as the memory makes necessary and not oftener
    (Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26(1), 2000). Where ops are deterministic, values and
    gradients are those of the loop bit for bit: for the first state, the inputs, and all that the step captures.

    step: ``step(state, part)``, or ``step(state)`` without inputs; returns (next state, outputs). outputs may be None.
    state: a tensor or a nest of tensors (tuples, lists, dicts, None). The next state must be a nest like it.
    inputs: a tensor or a nest of tensors, split along the first dimension.
    length: the number of steps, where there are no inputs.
    memory: bytes, or text such as "64MiB", for the kept states and the graph that is made at a time. None: as much as
        makes each step run at most once more, which grows with the square root of the length. Where the whole graph
        fits, it is kept.
    generators: those that the step draws from, beside the default one.
    report: filled with what was planned and done.

    A step may draw random numbers and change its state in place. It must not keep tensors with their graph outside of
    the state, or change captured tensors in place: UsageError (LT0223). A replay that goes another way than the first
    run is DivergenceError (LT0224), in backward. Also raised: UsageError LT0220 (state or inputs), LT0221 (too little
    memory, with the least that would do), LT0222 (results of other shapes), LT0225 (double backward).
    """
    state_nest = _Nest(state, "the state", "LT0222")
    given = state_nest.to_list(state)
    input_nest, sequences = None, []
    if inputs is not None:
        input_nest = _Nest(inputs, "the inputs", "LT0220")
        sequences = input_nest.to_list(inputs)
    if (length is None) == (inputs is None):
        raise UsageError("cannot scan: give either inputs or length [LT0220]", "LT0220")
    memory_bytes = _core.parse_bytes(memory) if isinstance(memory, str) else int(memory or 0)
    made: list[_Nest | None] = []
    last, outputs = _core.run_scan(
        _adapted(step, state_nest, input_nest, made), given, sequences, length or 0, memory_bytes, list(generators),
        report)
    nest = made[0]
    return state_nest.of_list(last), None if nest is None else nest.of_list(outputs)


def scan_cell(
    cell: torch.nn.Module, inputs: torch.Tensor, state: Any = None, **options: Any
) -> tuple[Any, torch.Tensor]:
    """``scan`` of an nn.LSTMCell, nn.GRUCell or nn.RNNCell, or a module with the same forward.

    inputs: (steps, batch, features), or (steps, features). state: (h, c) or h; None is zeros, for torch's own cells.
    options: those of ``scan``. Returns the last state and h of all steps, (steps, batch, hidden).
    """
    is_lstm = isinstance(cell, torch.nn.LSTMCell)
    if state is None:
        if not isinstance(cell, torch.nn.modules.rnn.RNNCellBase):
            raise UsageError(
                f"scan_cell: give the first state of a {type(cell).__name__}; it is known for torch's own cells only "
                "[LT0220]", "LT0220")
        zeros = inputs.new_zeros(inputs.shape[1:-1] + (cell.hidden_size,))
        state = (zeros, torch.zeros_like(zeros)) if is_lstm else zeros

    def step(before: Any, part: torch.Tensor) -> tuple[Any, torch.Tensor]:
        after = cell(part, before)
        return after, after[0] if isinstance(after, tuple) else after

    return scan(step, state, inputs, **options)


def detach_state(state: Any) -> Any:
    """The nest with each tensor cut from its history ("repackaged"): the same bytes, no copy.

    For the state that goes from one window of a long sequence to the next. Anything but a tensor stays as it is.
    """
    if isinstance(state, torch.Tensor):
        return state.detach()
    return pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, state)


def _window(step: Callable[..., Any], state: Any, inputs: Any, begin: int, end: int) -> tuple[Any, Any]:
    leaves, spec = pytree.tree_flatten(inputs)
    outputs = []
    for t in range(begin, end):
        part = pytree.tree_unflatten([leaf[t] for leaf in leaves], spec)
        state, output = step(state, part)
        outputs.append(output)
    return pytree.tree_map(lambda *column: None if column[0] is None else torch.stack(column), *outputs), state


def truncated_bptt(
    step: Callable[..., tuple[Any, Any]], state: Any, inputs: Any, window: int
) -> Iterator[tuple[Any, Any]]:
    """Truncated backpropagation through time (Williams and Peng, Neural Computation 2(4), 1990).

        for outputs, state in lowtide.truncated_bptt(step, state, inputs, window=35):
            loss_of(outputs).backward()
            optimizer.step()
            optimizer.zero_grad()

    Runs ``state, output = step(state, inputs[t])`` over windows of ``window`` steps, the last one may be shorter, and
    gives after each the outputs, stacked, and the state. The state goes on detached: gradients do not reach across
    windows, and memory is one window's graph. state, inputs and outputs may be nests.

    Raises UsageError: LT0220 for inputs of unequal length, LT0226 for a window below 1.
    """
    if window < 1:
        raise UsageError(
            f"cannot run truncated backpropagation with a window of {window} steps: give at least one [LT0226]",
            "LT0226", {"window": window})
    lengths = {len(leaf) for leaf in pytree.tree_leaves(inputs)}
    if len(lengths) != 1:
        raise UsageError(
            f"cannot run truncated backpropagation: inputs have {sorted(lengths)} steps along their first dimension; "
            "give tensors of one length [LT0220]", "LT0220")

    def windows(state: Any) -> Iterator[tuple[Any, Any]]:
        length = lengths.pop()
        for begin in range(0, length, window):
            # In one expression: no name here may hold the window's graph while the next one is made.
            result = _window(step, detach_state(state), inputs, begin, min(begin + window, length))
            state = detach_state(result[1])
            yield result
            del result

    return windows(state)
