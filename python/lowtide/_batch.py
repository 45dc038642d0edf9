"""A batch as a nest of tensors, and smaller and larger batches made of its samples."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections import Counter, UserDict
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Iterator

import torch

from lowtide.errors import UsageError

# Rows in which a mask has the most places set are always part of a slice: for so many masks.
MOST_LONGEST = 4


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, bytes, int, float, complex, bool, type, torch.dtype, torch.device))


def _fields(value: Any) -> dict[str, Any] | None:
    """The tensors and nests in an object such as a dataclass or a graph library's batch."""
    if isinstance(value, (torch.nn.Module, types.ModuleType, types.FunctionType, type)):
        return None
    return getattr(value, "__dict__", None) or None


def _map(value: Any, leaf: Callable[[torch.Tensor], torch.Tensor], samples: Callable[[list[Any]], list[Any]],
         is_samples: Callable[[Any], bool]) -> Any:
    """A copy of the nest with every tensor replaced by ``leaf`` of it and every list of samples by ``samples``."""
    if isinstance(value, torch.Tensor):
        return leaf(value)
    if _is_plain(value):
        return value
    if is_samples(value):
        chosen = samples(list(value))
        return tuple(chosen) if type(value) is tuple else chosen
    go = lambda inner: _map(inner, leaf, samples, is_samples)  # noqa: E731
    if isinstance(value, Mapping):
        mapped = {key: go(inner) for key, inner in value.items()}
        if type(value) is dict:
            return mapped
        other = copy.copy(value)
        if isinstance(other, UserDict):
            other.data = mapped
        else:
            for key, inner in mapped.items():
                other[key] = inner  # type: ignore[index]
        return other
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(go(inner) for inner in value))
    if isinstance(value, (list, tuple)):
        return type(value)(go(inner) for inner in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {field.name: go(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **changes)
    fields = _fields(value)
    if fields is not None:
        other = copy.copy(value)
        for name, inner in fields.items():
            mapped_inner = go(inner)
            if mapped_inner is not inner:
                other.__dict__[name] = mapped_inner
        return other
    return value


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple)):
        yield from value
    elif not isinstance(value, torch.Tensor) and not _is_plain(value):
        yield from (_fields(value) or {}).values()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    for child in _children(value):
        yield from _tensors(child)


def _bytes_of(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in _tensors(value))


class Batch:
    """``nest`` and how many samples it has.

    Tensors whose first dimension is that number are split along it. So are lists of that length whose items are
    samples themselves: dicts or objects (boxes and labels of an image), or tensors that differ in shape.
    """

    def __init__(self, nest: Any) -> None:
        self.nest = nest
        self.notes: list[str] = []
        self._lists: set[int] = set()  # lengths of lists of samples
        self.size = self._find_size()
        self.is_meta = any(t.is_meta for t in _tensors(nest))
        self._sizes = self._sizes_of_samples()
        if self.is_meta:
            self.notes.append("the batch is on the meta device: floats of it are drawn at random, integers are 0")
        if self._sizes and max(self._sizes) > min(self._sizes):
            mean = sum(self._sizes) / len(self._sizes)
            self.notes.append(
                f"samples differ in size, from {min(self._sizes)} to {max(self._sizes)} bytes, {mean:.0f} on average: "
                "each slice has the largest, and about that average")

    def _find_size(self) -> int:
        first = self._first_dimension(self.nest)
        if first is None:
            raise UsageError(
                "predict: no tensor of the batch has a first dimension, so there is nothing to slice. Pass the batch as "
                "a tensor, or as a list, tuple or dict of tensors whose first dimension is the batch [LT0332]", "LT0332")
        if first < 1:
            raise UsageError("predict: the batch has no samples [LT0332]", "LT0332")
        return first

    def _first_dimension(self, value: Any) -> int | None:
        """The commonest first dimension of tensors that stand in no list of samples; else the length of such a list."""
        outer: Counter[int] = Counter()
        lists: Counter[int] = Counter()

        def certain(inner: Any) -> Iterator[int]:
            if isinstance(inner, list) and inner and self._look_like_samples(inner):
                yield len(inner)
            elif not isinstance(inner, torch.Tensor):
                for child in _children(inner):
                    yield from certain(child)

        self._lists = set(certain(value))

        def look(inner: Any) -> None:
            if isinstance(inner, torch.Tensor):
                if inner.dim() > 0:
                    outer[inner.shape[0]] += 1
            elif isinstance(inner, list) and inner and (self._look_like_samples(inner) or self._are_images(inner)):
                lists[len(inner)] += 1
            else:
                for child in _children(inner):
                    look(child)

        look(value)
        counts = outer or lists
        if not counts:
            return None
        best = max(counts.values())
        return next(size for size, count in counts.items() if count == best)

    @staticmethod
    def _look_like_samples(items: Sequence[Any]) -> bool:
        if all(isinstance(item, torch.Tensor) for item in items):
            # Tensors of equal length are columns of the batch; such as differ are samples.
            return len({item.shape[0] if item.dim() else -1 for item in items}) > 1 or (
                len(items) > 1 and all(item.dim() == 0 for item in items))
        return all(not _is_plain(item) and any(True for _ in _tensors(item)) for item in items) and not any(
            isinstance(item, torch.Tensor) for item in items)

    def _is_samples(self, value: Any) -> bool:
        return (isinstance(value, (list, tuple)) and not hasattr(value, "_fields") and len(value) == self.size
                and (self.size > 1 or isinstance(value, list))
                and (self._look_like_samples(value) or self._are_images(value)) and not self._are_columns(value))

    def _are_images(self, items: Any) -> bool:
        """Tensors alike, beside a list of as many samples of another kind: their images."""
        return isinstance(items, list) and len(items) in self._lists and all(isinstance(t, torch.Tensor) for t in items)

    def _are_columns(self, items: Sequence[Any]) -> bool:
        """Nests in a tuple, such as (inputs, targets) for a batch of two."""
        return isinstance(items, tuple) and all(
            t.dim() > 0 and t.shape[0] == self.size for item in items for t in _tensors(item))

    def _sizes_of_samples(self) -> list[int]:
        sizes: list[int] = []

        def gather(items: list[Any]) -> list[Any]:
            nonlocal sizes
            each = [_bytes_of(item) for item in items]
            sizes = [a + b for a, b in zip(sizes, each)] if sizes else each
            return items

        _map(self.nest, lambda t: t, gather, self._is_samples)
        return sizes

    def _is_split(self, tensor: torch.Tensor) -> bool:
        return tensor.dim() > 0 and tensor.shape[0] == self.size

    def _longest_rows(self) -> list[int]:
        """For each mask, and each column of lengths, the row with the most."""
        rows: list[int] = []

        def look(tensor: torch.Tensor) -> torch.Tensor:
            if not self._is_split(tensor) or tensor.is_meta or len(rows) >= MOST_LONGEST:
                return tensor
            if tensor.is_floating_point() or tensor.is_complex() or self.size < 2:
                return tensor
            counts = tensor if tensor.dim() == 1 else (tensor != 0).flatten(1).sum(1)
            if tensor.dim() > 1 and bool((counts == counts[0]).all()):
                return tensor
            rows.append(int(counts.argmax()))
            return tensor

        _map(self.nest, look, lambda items: items, self._is_samples)
        return rows

    def rows(self, count: int) -> list[int]:
        """Which samples a batch of ``count`` has. They repeat when there are not so many."""
        if self._sizes and max(self._sizes) > min(self._sizes):
            return self._even_rows(count)
        first = list(dict.fromkeys(self._longest_rows()))[:count]
        taken = set(first)
        rest = (row for row in range(self.size) if row not in taken)
        chosen = first + [row for row, _ in zip(rest, range(count - len(first)))]
        while len(chosen) < count:
            chosen.append(len(chosen) % self.size)
        return sorted(chosen)

    def _even_rows(self, count: int) -> list[int]:
        """The largest sample, and others so that the average is that of the batch."""
        sizes = self._sizes
        order = sorted(range(self.size), key=lambda row: -sizes[row])
        mean = sum(sizes) / len(sizes)
        chosen, total = [order[0]], sizes[order[0]]
        left = order[1:]
        while len(chosen) < count:
            if not left:
                left = list(order)
            wanted = mean * (len(chosen) + 1) - total
            best = min(left, key=lambda row: abs(sizes[row] - wanted))
            left.remove(best)
            chosen.append(best)
            total += sizes[best]
        return sorted(chosen)

    def slice(self, count: int) -> Any:
        """A batch of ``count`` samples, in memory of its own."""
        rows = self.rows(count)

        def take(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_meta:
                shape = (count, *tensor.shape[1:]) if self._is_split(tensor) else tuple(tensor.shape)
                if tensor.is_floating_point() or tensor.is_complex():
                    return torch.randn(shape, dtype=tensor.dtype).requires_grad_(tensor.requires_grad)
                return torch.zeros(shape, dtype=tensor.dtype)
            made = tensor.detach()
            if self._is_split(tensor):
                made = made[torch.tensor(rows, dtype=torch.int64)]
            else:
                made = made.clone()
            return made.requires_grad_(tensor.requires_grad)

        # What is in a sample is not split again.
        copied = lambda item: _map(item, lambda t: t.detach().clone().requires_grad_(t.requires_grad),  # noqa: E731
                                   lambda items: items, lambda _: False)
        return _map(self.nest, take, lambda items: [copied(items[row]) for row in rows], self._is_samples)

    def counted_bytes(self) -> int:
        """Of the batch's tensors as they are now; each storage once."""
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes()
                    for t in _tensors(self.nest) if not t.is_meta and t.device.type == "cpu"}
        return sum(storages.values())

    def bytes_of(self, count: int) -> int:
        """Of a batch of ``count`` such samples."""
        per_batch = fixed = 0

        def look(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal per_batch, fixed
            size = tensor.numel() * tensor.element_size()
            if self._is_split(tensor):
                per_batch += size
            else:
                fixed += size
            return tensor

        _map(self.nest, look, lambda items: items, self._is_samples)
        per_batch += sum(self._sizes)
        return fixed + -(-per_batch * count // self.size)


def fresh(nest: Any) -> Any:
    """The nest in containers of its own: a step may take things out of them."""
    return _map(nest, lambda t: t, lambda items: items, lambda _: False)
