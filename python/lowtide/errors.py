"""The errors that Lowtide raises. Each has a stable ``id`` such as ``LT0301`` (docs/errors.md) and the numbers
behind its message as ``details``."""

from __future__ import annotations

from typing import Any, Union

import torch

Detail = Union[int, float, str]


class Error(Exception):
    """What every error of Lowtide's is. ``str(error)`` is the message, with the id at its end."""

    def __init__(self, message: str, id: str = "", details: dict[str, Detail] | None = None) -> None:
        super().__init__(message)
        self.id = id
        self.details = dict(details or {})

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.id, self.details)


class UsageError(Error, ValueError):
    """The call was wrong: an argument, a flag, a shape."""


class IoError(Error):
    """The operating system refused: a file that cannot be opened, a full disk."""


class FormatError(Error, ValueError):
    """The bytes of a file are not what its format asks for."""


class DivergenceError(Error, RuntimeError):
    """A step, or the replay of a part of one, went another way than the first time."""


class TorchError(Error, RuntimeError):
    """torch is of another version than Lowtide was built for, or did not behave as it must."""


class InternalError(Error, RuntimeError):
    """A bug of Lowtide's own."""


class AllocationError(Error, torch.OutOfMemoryError):
    """The system has no memory left for a tensor."""


class BudgetError(Error, torch.OutOfMemoryError):
    """An allocation that a budget refused; all tensors are as they were before the op.

    ``details``: request_bytes, limit_bytes, live_bytes, live_<kind>_bytes, op, and smallest_budget_bytes, the
    smallest limit known to carry this step (at least that many while smallest_budget_is_bound is 1).
    """


CLASSES = (
    Error, UsageError, IoError, FormatError, DivergenceError, TorchError, InternalError, AllocationError, BudgetError,
)
