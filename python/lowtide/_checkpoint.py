from __future__ import annotations

from typing import Any, Callable, Sequence, TypeVar

import torch
from torch.utils import _pytree as pytree

from lowtide import _core, _saved_tensors
from lowtide.errors import UsageError

Module = TypeVar("Module", bound=torch.nn.Module)


class _Tensor:
    """Stands in a nest for the tensor that it was."""


_TENSOR = _Tensor()


def _run(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], early_stop: bool, offload: str | None
) -> Any:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    others = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def run(inputs: list[torch.Tensor]) -> Any:
        given = iter(inputs)
        filled = [next(given) if leaf is _TENSOR else leaf for leaf in others]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return function(*args, **kwargs)

    _saved_tensors.install()
    return _core.run_region(run, tensors, early_stop, offload or "none", "")


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool = False,
    preserve_rng_state: bool = True,
    early_stop: bool = True,
    offload: str | None = None,
    **kwargs: Any,
) -> Any:
    """Runs ``function(*args, **kwargs)`` without keeping what its backward needs, and again when backward gets there.

    Takes the place of torch.utils.checkpoint.checkpoint. Losses and gradients are bit for bit those of the plain run:
    dropout draws the same numbers, batch norm's statistics move once, autocast is restored. The function may change
    its inputs in place, return anything, and contain other regions; autograd.grad, double backward and retain_graph
    work. If the second run saves other tensors than the first, or what it read was changed in between, backward raises
    DivergenceError (LT0201 and following). Values that the function computes by hand (a counter, a clock) are not seen.

    early_stop: end the second run once all that backward needs is there.
    offload: None, or "disk": inputs of 64 KiB and more wait in an unlinked file; "host": in host memory.
    use_reentrant, preserve_rng_state: as torch's, for calls that name them; only False and True are there.
    """
    unknown = sorted({"context_fn", "determinism_check"} & kwargs.keys())
    if unknown:
        raise UsageError(
            f"checkpoint: {', '.join(unknown)} is not there; what a region saves is chosen by a budget, and replays are "
            "always compared; leave it out [LT0209]", "LT0209")
    if use_reentrant or not preserve_rng_state:
        raise UsageError(
            "checkpoint: regions are never reentrant and always restore generators; leave use_reentrant and "
            "preserve_rng_state out [LT0209]", "LT0209")
    return _run(function, args, kwargs, early_stop, offload)


def checkpoint_sequential(functions: Any, segments: int, input: Any, **options: Any) -> Any:
    """Runs an nn.Sequential, or a list of functions, in ``segments`` parts, each a region except the last.

    Takes the place of torch.utils.checkpoint.checkpoint_sequential. ``options`` are those of ``checkpoint``. Raises
    UsageError (LT0206) unless 1 <= segments <= number of functions.
    """
    parts: Sequence[Callable[..., Any]] = list(
        functions.children() if isinstance(functions, torch.nn.Sequential) else functions)
    if not 1 <= segments <= len(parts):
        raise UsageError(
            f"cannot run {len(parts)} modules in {segments} checkpointed segments: give a number from 1 to "
            f"{len(parts)} [LT0206]", "LT0206", {"segments": segments, "modules": len(parts)})

    def run(begin: int, end: int, x: Any) -> Any:
        for part in parts[begin:end]:
            x = part(x)
        return x

    for i in range(segments):
        begin, end = i * len(parts) // segments, (i + 1) * len(parts) // segments
        input = run(begin, end, input) if i + 1 == segments else checkpoint(run, begin, end, input, **options)
    return input


_wrapped_classes: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


def _rebuild(cls: type[torch.nn.Module]) -> torch.nn.Module:
    made = _wrapped_class(cls)
    return made.__new__(made)


def _wrapped_class(cls: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """The class whose forward is cls's as a checkpointed region; a subclass of the same name."""
    known = _wrapped_classes.get(cls)
    if known is not None:
        return known

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            return cls.forward(self, *args, **kwargs)

        return _run(run, args, kwargs, True, self._lowtide_offload)

    def reduce(self: Any, protocol: int) -> Any:
        # The class is made here, so it cannot be found by its name.
        return _rebuild, (cls,), self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__

    made = type(cls.__name__, (cls,), {
        "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__,
        "forward": forward, "__reduce_ex__": reduce, "_lowtide_wrapped": cls})
    _wrapped_classes[cls] = made
    return made


def checkpoint_wrapper(module: Module, offload_to_cpu: bool = False) -> Module:
    """Makes ``module`` checkpoint its forward from now on, and returns it: the same object, of a subclass of its class.

    Takes the place of fairscale's function of that name. Names in the state dict, hooks and parameters stay as they
    are; copies and pickles are checkpointed too. offload_to_cpu: keep the inputs in host memory meanwhile; those that
    are there already stay where they are. Wrapping twice is the same as once.
    """
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"checkpoint_wrapper: expected an nn.Module, not {type(module).__name__} [LT0209]", "LT0209")
    if "forward" in module.__dict__:
        raise UsageError(
            f"checkpoint_wrapper: {type(module).__name__} has a forward of its own instance (patched by another "
            "tool); wrap it before that [LT0209]", "LT0209")
    if not hasattr(type(module), "_lowtide_wrapped"):
        module.__class__ = _wrapped_class(type(module))  # type: ignore[assignment]
    module._lowtide_offload = "host" if offload_to_cpu else None  # type: ignore[assignment]
    return module
