"""Loads the bindings, or says why they cannot be."""

from __future__ import annotations

import importlib
import types


def load() -> types.ModuleType:
    """Returns the module ``lowtide._core``.

    Raises ImportError when torch is missing or of another version than the bindings were built for: they use
    its C++ classes, whose layout changes from version to version.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ImportError("lowtide needs torch: pip install torch") from error
    from lowtide._built_for import TORCH_VERSION

    found = torch.__version__.split("+")[0]
    if found.split(".")[:2] != TORCH_VERSION.split(".")[:2]:
        raise ImportError(
            f"this lowtide was built for torch {TORCH_VERSION}, but torch {found} is installed in "
            f"{torch.__path__[0]}. Install torch {TORCH_VERSION}, or build lowtide again beside this torch: "
            "pip install --no-build-isolation --force-reinstall lowtide")
    core = importlib.import_module("lowtide._core")
    from lowtide import errors

    core.set_error_classes({cls.__name__: cls for cls in errors.CLASSES})
    return core
