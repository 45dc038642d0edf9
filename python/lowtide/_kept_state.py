"""What a training step changes, kept and put back: parameters, buffers, gradients, optimizers and what drives them,
and generators of random numbers."""

from __future__ import annotations

import collections
import copy
import functools
import gc
import random
import sys
import types
from typing import Any, Callable, Iterator

import torch

MOST_OBJECTS = 50_000
# Tensors without a gradient that a step reaches beside its modules, such as averages, are kept up to this size.
MOST_LOOSE_BYTES = 256 << 20


def _libraries(name: str) -> bool:
    return name.split(".")[0] in {"torch", "numpy", "builtins", "lowtide"} or name.split(".")[0] in sys.stdlib_module_names


def reachable(root: Any) -> Iterator[Any]:
    """Everything that a function can get at: what it closes over, globals that it names, and what those hold."""
    seen: set[int] = set()
    queue: collections.deque[Any] = collections.deque([root])
    while queue and len(seen) < MOST_OBJECTS:
        value = queue.popleft()
        if id(value) in seen or value is None or isinstance(value, (str, bytes, int, float, complex, types.ModuleType)):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, torch.Tensor):
            continue
        if isinstance(value, types.FunctionType):
            if _libraries(value.__module__ or ""):
                continue
            for cell in value.__closure__ or ():
                try:
                    queue.append(cell.cell_contents)
                except ValueError:  # not set yet
                    pass
            queue.extend(value.__defaults__ or ())
            queue.extend((value.__kwdefaults__ or {}).values())
            names: set[str] = set()
            codes = [value.__code__]
            while codes:
                code = codes.pop()
                names.update(code.co_names)
                codes.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
            queue.extend(value.__globals__[name] for name in names if name in value.__globals__)
        elif isinstance(value, types.MethodType):
            queue.extend((value.__self__, value.__func__))
        elif isinstance(value, functools.partial):
            queue.extend((value.func, value.args, value.keywords))
        elif isinstance(value, dict):
            queue.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            queue.extend(value)
        elif isinstance(value, type):
            continue
        else:
            queue.extend((getattr(value, "__dict__", None) or {}).values())


class _Contents:
    """A tensor's contents, in memory that the meter does not count."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = None if tensor.is_inference() else tensor._version
        self.copy: torch.Tensor | None = None
        if tensor.numel() > 0:
            memory = bytearray(tensor.numel() * tensor.element_size())
            self.copy = torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
            self.copy.copy_(tensor.detach())

    def put_back(self, also_version: bool = False) -> None:
        if self.copy is None:
            return
        with torch.no_grad():
            self.tensor.detach().copy_(self.copy)
        if also_version and self.version is not None:
            torch._C._autograd._unsafe_set_version_counter((self.tensor,), (self.version,))


def _is_kept_by_contents(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized and not (
        type(tensor) not in (torch.Tensor, torch.nn.Parameter) and type(tensor).__module__.startswith("torch._subclasses"))


class _Attributes:
    """An object's attributes, and what its own lists, dicts and sets hold."""

    def __init__(self, owner: Any, but: tuple[str, ...] = ()) -> None:
        self.owner = owner
        self.but = but
        self.values = {name: value for name, value in owner.__dict__.items() if name not in but}
        self.containers = [(value, copy.copy(value)) for value in self.values.values()
                           if type(value) in (list, dict, set, collections.OrderedDict, collections.defaultdict)]

    def put_back(self) -> None:
        attributes = self.owner.__dict__
        for name in [name for name in attributes if name not in self.values and name not in self.but]:
            del attributes[name]
        attributes.update(self.values)
        for container, held in self.containers:
            if isinstance(container, list):
                container[:] = held
            else:
                container.clear()
                container.update(held)


class _Generators:
    def __init__(self, found: list[Any]) -> None:
        self.put: list[Callable[[], None]] = []
        state = random.getstate()
        self.put.append(lambda: random.setstate(state))
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy_state = numpy.random.get_state()
            self.put.append(lambda: numpy.random.set_state(numpy_state))
        self._keep_torch(torch.default_generator)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            cuda_states = torch.cuda.get_rng_state_all()
            self.put.append(lambda: torch.cuda.set_rng_state_all(cuda_states))
        for generator in found:
            if isinstance(generator, torch.Generator):
                self._keep_torch(generator)
            elif isinstance(generator, random.Random):
                self._keep_random(generator)
            elif numpy is not None and isinstance(generator, (numpy.random.Generator, numpy.random.RandomState)):
                self._keep_bits(generator)

    def _keep_torch(self, generator: torch.Generator) -> None:
        state = _Contents(generator.get_state()).copy  # not counted
        self.put.append(lambda: generator.set_state(state))

    def _keep_random(self, generator: random.Random) -> None:
        state = generator.getstate()
        self.put.append(lambda: generator.setstate(state))

    def _keep_bits(self, generator: Any) -> None:
        bits = generator.bit_generator if hasattr(generator, "bit_generator") else generator._bit_generator
        state = copy.deepcopy(bits.state)

        def put() -> None:
            bits.state = state

        self.put.append(put)

    def put_back(self) -> None:
        for put in self.put:
            put()


class KeptState:
    """The state of everything that ``step`` trains, as it was when this was made.

    What the step reaches only in ways that cannot be seen beforehand is kept when it is first used: modules at their
    first call (note_module), optimizers before their first step (note_optimizer).
    """

    def __init__(self, step: Callable[..., Any], contents: bool = True) -> None:
        """``contents``: of tensors are kept too; False when the step will not touch the tensors themselves."""
        self.notes: list[str] = []
        self._keeps_contents = contents
        self.modules: dict[int, torch.nn.Module] = {}
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self._contents: dict[int, _Contents] = {}
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._attributes: dict[int, _Attributes] = {}
        self._groups: dict[int, list[dict[str, Any]]] = {}
        self._states: dict[int, dict[Any, Any]] = {}
        found = list(reachable(step))
        self._generators = _Generators(found)
        scaler = getattr(torch.amp, "GradScaler", ())
        loose = 0
        for value in found:
            if isinstance(value, torch.nn.Module):
                self.note_module(value)
            elif isinstance(value, torch.optim.Optimizer):
                self.note_optimizer(value)
            elif isinstance(value, (torch.optim.lr_scheduler.LRScheduler, scaler)):
                self._keep_object(value)
            elif isinstance(value, torch.Tensor) and id(value) not in self._contents:
                size = value.numel() * value.element_size()
                if value.requires_grad and value.is_leaf:
                    self._keep_tensor(value)
                elif not value.requires_grad and loose + size <= MOST_LOOSE_BYTES:
                    loose += size
                    self._keep_tensor(value)
                elif not value.requires_grad:
                    self.notes.append(f"a tensor of {size} bytes that the step reaches is not copied: if the step changes "
                                      "it in place, that stays")
        # What trains the parameters may be out of sight, as in a trainer that the step only calls.
        drivers = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, scaler) if scaler else (
            torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
        for value in gc.get_objects():
            if not issubclass(type(value), drivers):  # isinstance would ask the object
                continue
            if isinstance(value, torch.optim.Optimizer):
                self.note_optimizer(value)
            else:
                self._keep_object(value)

    def note_module(self, module: torch.nn.Module) -> None:
        if id(module) in self.modules:
            return
        for part in module.modules():
            if id(part) in self.modules:
                continue
            self.modules[id(part)] = part
            for tensor in (*part._parameters.values(), *part._buffers.values()):
                if tensor is not None:
                    self._keep_tensor(tensor)
            self._attributes[id(part)] = _Attributes(part)

    def note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self.optimizers or not hasattr(optimizer, "param_groups"):
            return
        self.optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._keep_tensor(parameter)
            for value in group.values():
                if isinstance(value, torch.Tensor):  # a learning rate
                    self._keep_tensor(value)
        self._groups[id(optimizer)] = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
        self._states[id(optimizer)] = {key: value for key, value in optimizer.state.items()}
        self._attributes[id(optimizer)] = _Attributes(optimizer, but=("state", "param_groups"))

    def _keep_tensor(self, tensor: torch.Tensor) -> None:
        if id(tensor) in self._contents or tensor.is_meta:
            return
        if not self._keeps_contents:
            return
        if not _is_kept_by_contents(tensor):
            self.notes.append(f"a {tensor.layout} tensor on {tensor.device} is not put back as it was")
            return
        self._contents[id(tensor)] = _Contents(tensor)
        if tensor.is_leaf and tensor.requires_grad:
            self._gradients[id(tensor)] = (tensor, tensor.grad)

    def _keep_object(self, value: Any) -> None:
        if id(value) in self._attributes:
            return
        self._attributes[id(value)] = _Attributes(value)
        for inner in value.__dict__.values():
            if isinstance(inner, torch.Tensor):
                self._keep_tensor(inner)

    def parameters(self) -> list[torch.Tensor]:
        return [tensor for tensor, _ in self._gradients.values()]

    def _put_back_all_but_gradients_and_optimizers(self, also_version: bool) -> None:
        for attributes in self._attributes.values():
            attributes.put_back()
        for contents in self._contents.values():
            contents.put_back(also_version)
        for key, optimizer in self.optimizers.items():
            saved = self._groups[key]
            del optimizer.param_groups[len(saved):]
            for group, was in zip(optimizer.param_groups, saved):
                group.clear()
                group.update({**was, "params": list(was["params"])})

    def rewind(self) -> None:
        """As it was, for a trial: gradients and the optimizers' state are copies, which a step may free or change."""
        self._put_back_all_but_gradients_and_optimizers(False)
        for tensor, gradient in self._gradients.values():
            tensor.grad = None if gradient is None else gradient.detach().clone()
        for key, optimizer in self.optimizers.items():
            optimizer.state.clear()
            for parameter, state in self._states[key].items():
                optimizer.state[parameter] = copy.deepcopy(state)
        self._generators.put_back()

    def put_back(self) -> None:
        """Everything as it was, the very tensors."""
        self._put_back_all_but_gradients_and_optimizers(True)
        for tensor, gradient in self._gradients.values():
            tensor.grad = gradient
        for key, optimizer in self.optimizers.items():
            optimizer.state.clear()
            optimizer.state.update(self._states[key])
        self._generators.put_back()
