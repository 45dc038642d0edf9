"""Names of modules, and which of them runs."""

from __future__ import annotations

from typing import Any, Iterable

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from lowtide import _core


class ModuleNames:
    """Modules by their path from the outermost module, as in named_modules(); that one by its class.

    Of several outermost modules all but the first have their class before the path: "Critic.layers.0".
    """

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._roots: list[torch.nn.Module] = []  # keeps ids meaningful
        self.of_tensor: dict[int, str] = {}
        """Parameters and buffers, by id."""

    def add(self, modules: Iterable[torch.nn.Module]) -> None:
        found = list(modules)
        inner = {id(part) for module in found for part in module.modules() if part is not module}
        for module in found:
            if id(module) not in inner and id(module) not in self._paths:
                self._add_root(module)

    def _add_root(self, root: torch.nn.Module) -> None:
        own = type(root).__name__
        for path, part in root.named_modules():
            if id(part) in self._paths:
                continue
            name = own if not path else f"{own}.{path}" if self._roots else path
            self._paths[id(part)] = name
            for tensor in (*part._parameters.values(), *part._buffers.values()):
                if tensor is not None:
                    self.of_tensor.setdefault(id(tensor), name)
        self._roots.append(root)

    def of(self, module: torch.nn.Module) -> str:
        path = self._paths.get(id(module))
        if path is None:
            self._add_root(module)
            path = self._paths[id(module)]
        return path


class ModuleHooks:
    """Tells the recorders which module runs, from install() to remove(). Nothing is attached to the modules."""

    def __init__(self, batch_size: int | None = None) -> None:
        self.names = ModuleNames()
        self._batch_size = batch_size
        self._depth = 0
        self._handles: list[Any] = []

    def install(self) -> None:
        _core.set_batch_size(self._batch_size or 0)
        self._handles = [
            register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave, always_call=True)]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.names = ModuleNames()  # lets go of the modules
        _core.set_batch_size(0)

    def _enter(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        _core.enter_module(self.names.of(module))
        if self._batch_size is None:
            # The first tensor that a module gets: what goes by keyword is not shown here, but goes on to an inner one.
            sizes = (t.shape[0] for t in arguments if isinstance(t, torch.Tensor) and t.dim() > 0)
            size = next(sizes, None)
            if size:
                self._batch_size = size
                _core.set_batch_size(size)

    def _leave(self, *_: Any) -> None:
        _core.leave_module()
