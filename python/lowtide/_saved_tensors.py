"""``ctx.saved_tensors`` of Python's autograd functions as it is without a budget: the tensors themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from lowtide import _core

_NAMES = ("saved_tensors", "saved_variables")
_plain = {name: getattr(torch._C._FunctionBase, name).__get__ for name in _NAMES}


def install() -> None:
    """Takes the place of torch's attributes, for good: graphs outlive budgets. Does nothing for a function none of
    whose saved tensors a budget keeps."""
    for name in _NAMES:
        if name in vars(BackwardCFunction):
            continue
        setattr(BackwardCFunction, name, property(_reader(_plain[name])))


def _reader(plain: Any) -> Any:
    def read(ctx: Any) -> Any:
        return _core.saved_tensors(ctx, plain)

    return read
