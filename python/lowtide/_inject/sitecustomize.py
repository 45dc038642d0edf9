"""Found first on PYTHONPATH by the Python that ``lowtide run`` starts: the budget begins when torch is imported."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


def run_other_sitecustomize(here):
    """This file hides the environment's own; that one runs as if this were not there."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


class AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Calls ``then`` once torch has been imported."""

    def __init__(self, then):
        self.then = then
        self.loader = None

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        self.loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.then()


def start():
    root = os.environ["LOWTIDE_PACKAGE_ROOT"]
    if importlib.util.find_spec("lowtide") is None:
        sys.path.append(root)
    package = sys.modules.get("lowtide")
    if package is not None and not hasattr(package, "budget"):
        package.start_session = True  # it is importing torch itself, and goes on when it is whole
        return
    from lowtide import _session

    _session.start()


here = os.path.dirname(os.path.abspath(__file__))
if not {"LOWTIDE_RUN_BUDGET", "LOWTIDE_RUN_TAPE", "LOWTIDE_RUN_PREDICT", "LOWTIDE_RUN_WATCH"}.isdisjoint(os.environ):
    sys.meta_path.insert(0, AfterTorch(start))
run_other_sitecustomize(here)
