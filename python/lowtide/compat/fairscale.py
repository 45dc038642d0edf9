"""``fairscale.nn.checkpoint`` where fairscale is not installed: what mmdetection's ``num_cp`` asks for.

    lowtide.compat.fairscale.install()
    from fairscale.nn.checkpoint import checkpoint_wrapper     # lowtide.checkpoint_wrapper

Unlike what it stands for, wrapped modules can be copied and pickled, and autocast, autograd.grad and DDP's search for
unused parameters are right.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types

from lowtide._checkpoint import checkpoint_wrapper

_NAMES = ("fairscale", "fairscale.nn", "fairscale.nn.checkpoint")


def install() -> bool:
    """Makes the three modules importable; False, with nothing done, when fairscale itself is installed."""
    if is_installed():
        return True
    if "fairscale" in sys.modules or importlib.util.find_spec("fairscale") is not None:
        return False
    for name in _NAMES:
        module = types.ModuleType(name, "Lowtide in the place of fairscale; see lowtide.compat.fairscale.")
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=not name.endswith("checkpoint"))
        module.__path__ = []  # type: ignore[attr-defined]
        module.__lowtide__ = True  # type: ignore[attr-defined]
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    sys.modules["fairscale.nn.checkpoint"].checkpoint_wrapper = checkpoint_wrapper  # type: ignore[attr-defined]
    sys.modules["fairscale.nn"].checkpoint_wrapper = checkpoint_wrapper  # type: ignore[attr-defined]
    return True


def is_installed() -> bool:
    """Whether install() has been called."""
    return getattr(sys.modules.get("fairscale"), "__lowtide__", False)


def uninstall() -> None:
    """Takes the modules away again; what was imported from them stays usable."""
    if is_installed():
        for name in _NAMES:
            sys.modules.pop(name, None)
