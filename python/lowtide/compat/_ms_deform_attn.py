from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import inspect
import re
import sys
import types
from typing import Any, Callable

import torch

from lowtide import ops

_MMCV = "mmcv.ops.multi_scale_deform_attn"
_TRANSFORMERS = re.compile(r"transformers\.models\.\w+\.modeling_\w+")


def _on_cpu(value: torch.Tensor) -> bool:
    return value.device.type == "cpu"


def _attend(
    value: torch.Tensor, shapes: torch.Tensor, starts: torch.Tensor | None, locations: torch.Tensor,
    weights: torch.Tensor
) -> torch.Tensor:
    if starts is None:
        areas = shapes.prod(1)
        starts = torch.cat((areas.new_zeros(1), areas.cumsum(0)[:-1]))
    precise = torch.float64 if value.dtype == torch.float64 else torch.float32
    return ops.ms_deform_attn(value, shapes, starts, locations.to(precise), weights.to(precise))


def _of_mmcv(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def multi_scale_deformable_attn_pytorch(
        value: torch.Tensor, value_spatial_shapes: torch.Tensor, sampling_locations: torch.Tensor,
        attention_weights: torch.Tensor
    ) -> torch.Tensor:
        if not _on_cpu(value):
            return original(value, value_spatial_shapes, sampling_locations, attention_weights)
        return _attend(value, value_spatial_shapes, None, sampling_locations, attention_weights)

    multi_scale_deformable_attn_pytorch.__lowtide__ = True  # type: ignore[attr-defined]
    return multi_scale_deformable_attn_pytorch


def _of_transformers(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    names = list(inspect.signature(original).parameters)

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        given = dict(zip(names, args), **kwargs)
        if not _on_cpu(given["value"]):
            return original(*args, **kwargs)
        shapes = given["value_spatial_shapes"]
        if not isinstance(shapes, torch.Tensor):
            shapes = torch.tensor(shapes, dtype=torch.int64)
        return _attend(
            given["value"], shapes, given.get("level_start_index"), given["sampling_locations"],
            given["attention_weights"])

    forward.__lowtide__ = True  # type: ignore[attr-defined]
    return forward


_NEEDED = {"value", "value_spatial_shapes", "sampling_locations", "attention_weights"}


def _replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name, None)
    if original is None or getattr(original, "__lowtide__", False):
        return
    # Some models have an operator of that name with sampling of another kind.
    parameters = set(inspect.signature(original).parameters)
    if _NEEDED <= parameters and not parameters & {"num_points_list", "method"}:
        setattr(owner, name, make(original))


def _patch(module: types.ModuleType) -> None:
    if module.__name__ == _MMCV:
        _replace(module, "multi_scale_deformable_attn_pytorch", _of_mmcv)
        return
    _replace(module, "multi_scale_deformable_attention", _of_transformers)
    owner = getattr(module, "MultiScaleDeformableAttention", None)
    if owner is not None:
        _replace(owner, "forward", _of_transformers)


def _is_wanted(name: str) -> bool:
    return name == _MMCV or _TRANSFORMERS.fullmatch(name) is not None


class _WhenImported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Patches modules that are imported later."""

    def __init__(self) -> None:
        self._searching = False
        self._loaders: dict[str, Any] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if self._searching or not _is_wanted(name):
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            self._loaders[name] = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._loaders[spec.name].create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        loader = self._loaders.pop(module.__name__)
        module.__spec__.loader = loader  # type: ignore[union-attr]
        module.__loader__ = loader
        loader.exec_module(module)
        _patch(module)


_finder = _WhenImported()


def enable_cpu_ms_deform_attn() -> None:
    """Gives mmcv's and transformers' multi-scale deformable attention Lowtide's CPU kernel.

    Covers mmcv.ops.MultiScaleDeformableAttention and the models of transformers that have one of that name
    (Deformable DETR, Grounding DINO, Mask2Former and their kin), imported before or later. Tensors on other devices
    go the way they went. Results agree with theirs to rounding. Calling it again is harmless.
    """
    for name, module in list(sys.modules.items()):
        if _is_wanted(name) and module is not None:
            _patch(module)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
