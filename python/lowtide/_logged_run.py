"""One run of a program for ``lowtide predict``: with a small batch, logged, and ended after a few training steps."""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from lowtide import _core
from lowtide._modules import ModuleHooks

STEPS = 3

_steps = 0
_modules = ModuleHooks(0)
_marked: dict[int, torch.optim.Optimizer] = {}
_loader_sizes: list[int] = []
_owner = 0


def start() -> None:
    """Begins the log, once a process; the environment says where it goes and how large batches are."""
    global _owner
    if _owner:
        return
    _owner = os.getpid()
    batch = int(os.environ.get("LOWTIDE_RUN_PREDICT_BATCH", "0"))
    _cut_loaders(batch)
    _modules.install()
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    gc.disable()
    atexit.register(_ended_early)
    _core.start_allocation_log()


def _cut_loaders(batch: int) -> None:
    """DataLoaders make batches of ``batch``; 0 leaves them. Their own sizes are noted."""
    make = DataLoader.__init__

    def make_small(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        sampler = getattr(self, "batch_sampler", None)
        size = getattr(sampler, "batch_size", None)
        if not isinstance(size, int):
            return
        _loader_sizes.append(size)
        if 0 < batch < size:
            sampler.batch_size = batch

    DataLoader.__init__ = make_small  # type: ignore[method-assign]


def _mark(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = _modules.names.of_tensor.get(id(parameter), "")
            _core.mark_block(parameter.detach(), "parameters", name)
            if parameter.grad is not None:
                _core.mark_block(parameter.grad.detach(), "gradients", name)
            state = optimizer.state.get(parameter)
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    _core.mark_block(value.detach(), "optimizer_state", name)


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    _mark(optimizer)
    _core.set_in_optimizer(True)


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    global _steps
    _core.set_in_optimizer(False)
    _mark(optimizer)
    _marked[id(optimizer)] = optimizer
    # A step of training ends with the last of its optimizers: the first one's next turn begins another.
    if next(iter(_marked)) == id(optimizer):
        _steps += 1
        gc.collect()
        _core.end_logged_step()
    if _steps == STEPS and os.getpid() == _owner:
        _write()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _write() -> None:
    log = _core.stop_allocation_log()
    with open(os.environ["LOWTIDE_RUN_PREDICT"], "w", encoding="utf-8") as file:
        json.dump({"steps": _steps, "loader_sizes": _loader_sizes, "log": log.state()}, file)


def _ended_early() -> None:
    if os.getpid() == _owner:
        _write()
