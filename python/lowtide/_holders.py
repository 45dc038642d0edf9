"""Who holds tensors in a Python program, and the line that put them there. Called by the bindings (host.cpp), once for
each finding of a watch: it looks at all objects several times.

The search goes up from the tensors, level by level, over what refers to them. Each object carries the set of the
tensors that it was reached from, so the container that holds many is told from the variable that holds the newest. It
ends at what has a name: a module's or a frame's variables, a class.
"""

from __future__ import annotations

import ast
import collections
import functools
import gc
import linecache
import os
import sys
import types
from typing import Any, Iterable, Iterator

import torch

from lowtide import _core

VARIABLE, CONTAINER, BOUNDED, HOOKS, KEY = range(5)  # hook::TensorHolder::Place
MOST_TENSORS = 64
MOST_LEVELS = 14
MOST_OBJECTS = 400  # of a level
HOOK_NAMES = frozenset({
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_full_backward_hooks",
    "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"})
_PARTS = frozenset({"_buffers", "_parameters", "_modules"})
_LRU_CACHE = type(functools.lru_cache(lambda: None))

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

Edge = tuple[str, Any]  # ("key", k), ("attr", name), ("index", i), ("is key", None), ("other", text)


def _is(held: Any, kinds: Any) -> bool:
    """isinstance() without asking the object, which may be a proxy that does something when asked."""
    return issubclass(type(held), kinds)


class _Roots:
    """The names that a search ends at, by the id of what they stand for; of local variables with a rank, low is best."""

    def __init__(self) -> None:
        self.locals: dict[int, tuple[str, types.CodeType, int]] = {}
        self.globals: dict[int, tuple[str, str]] = {}
        for name, module in list(sys.modules.items()):
            if _is(module, types.ModuleType) and id(module.__dict__) not in self.globals:
                self.globals[id(module.__dict__)] = ("" if name == "__main__" else name, getattr(module, "__file__", "") or "")
        self.files: list[str] = []  # of the frames
        self.running: set[int] = set()  # the frames; others are kept by a traceback
        for level, frame in enumerate(_frames()):
            self.running.add(id(frame))
            code = frame.f_code
            if code.co_filename not in self.files:
                self.files.append(code.co_filename)
            if id(frame.f_globals) not in self.globals:
                self.globals[id(frame.f_globals)] = ("", code.co_filename)
            if code.co_filename.startswith((_HERE, _TORCH)):
                continue
            for i, (name, value) in enumerate(_core.frame_locals(frame)):
                # What is passed on is not kept by who gets it; outer frames are better known by their names.
                rank = 1000 - level + (10000 if i < code.co_argcount + code.co_kwonlyargcount else 0)
                values = [value]
                if _is(value, types.CellType):
                    try:
                        values.append(value.cell_contents)
                    except ValueError:
                        pass
                for one in values:
                    if id(one) not in self.locals or rank < self.locals[id(one)][2]:
                        self.locals[id(one)] = name, code, rank


def _frames() -> Iterator[types.FrameType]:
    for frame in sys._current_frames().values():
        at: types.FrameType | None = frame
        while at is not None:
            yield at
            at = at.f_back


class _Node:
    """An object on the way up: what was reached through it, by the child that it refers to."""

    __slots__ = ("object", "members", "child", "edge", "depth")

    def __init__(self, held: Any, members: frozenset[int], child: _Node | None, edge: Edge | None, depth: int) -> None:
        self.object, self.members, self.child, self.edge, self.depth = held, members, child, edge, depth


def _attributes(held: Any) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(held, "__dict__")
    except Exception:  # whatever a class of the program's raises: it has no attributes that can be named
        return None
    return found if isinstance(found, dict) else None


def _edge(parent: Any, child: Any) -> Edge | None:
    """How ``parent`` refers to ``child``; the last place, where there are several. None: not in a way that is named."""
    if _is(parent, dict):
        for key, value in reversed(list(parent.items())):
            if value is child:
                return "key", key
        return ("is key", None) if any(key is child for key in list(parent)) else None
    if _is(parent, (list, tuple, collections.deque)):
        for i in range(len(parent) - 1, -1, -1):
            if parent[i] is child:
                if _is(parent, tuple) and hasattr(parent, "_fields"):
                    return "attr", parent._fields[i]
                return "index", i
        return None
    if _is(parent, (set, frozenset)):
        return "is key", None
    if _is(parent, types.CellType):
        return "cell", None
    if _is(parent, types.FunctionType):
        return ("closure", parent) if parent.__closure__ is child else ("other", "a default value")
    if _is(parent, type):
        return "class", None
    if _is(parent, types.MethodType):
        return "self", None
    if _is(parent, functools.partial):
        return "other", "an argument"
    if _is(parent, _LRU_CACHE):
        return "cache", None
    if _is(parent, (types.GeneratorType, types.CoroutineType)):
        frame = parent.gi_frame if _is(parent, types.GeneratorType) else parent.cr_frame
        if frame is not None:
            for name, value in _core.frame_locals(frame):
                if value is child:
                    return "attr", name
        return None
    if _is(parent, types.ModuleType):
        return None
    if _is(parent, types.FrameType):
        return next((("attr", name) for name, value in _core.frame_locals(parent) if value is child), None)
    if _is(parent, types.TracebackType):
        return ("attr", "tb_frame") if parent.tb_frame is child else ("attr", "tb_next")
    if _is(parent, BaseException) and parent.__traceback__ is child:
        return "attr", "__traceback__"
    attributes = _attributes(parent)
    if attributes is not None:
        if attributes is child:
            return "dict", None
        for name, value in attributes.items():
            if value is child:
                return "attr", name
    for cls in type(parent).__mro__:
        for name in getattr(cls, "__slots__", ()) if isinstance(getattr(cls, "__slots__", ()), (tuple, list)) else ():
            if getattr(parent, name, None) is child:
                return "attr", name
    return "other", f"a {type(parent).__name__}"


def _search(tensors: list[Any], hidden_ids: set[int], roots: _Roots) -> Iterator[tuple[_Node, str, str, int]]:
    """Each way up that ended at a name: the last node, the function of a local variable, the file, and a rank."""
    level = {id(tensor): _Node(tensor, frozenset({i}), None, None, 0) for i, tensor in enumerate(tensors)}
    seen: dict[int, _Node] = dict(level)
    for depth in range(1, MOST_LEVELS + 1):
        for node in level.values():
            if id(node.object) in roots.locals:
                name, code, rank = roots.locals[id(node.object)]
                where = "" if code.co_name == "<module>" else f" in {code.co_name}()"
                yield _Node(None, node.members, node, ("root", name), depth), where, code.co_filename, rank
        objects = [node.object for node in level.values()]
        referrers = gc.get_referrers(*objects)
        hidden = hidden_ids | {id(objects), id(referrers), id(level), id(seen)}
        above: dict[int, _Node] = {}
        for parent in referrers:
            if id(parent) in hidden or id(parent) in roots.running or _is(parent, _Node):
                continue
            if id(parent) in roots.globals:
                module, file = roots.globals[id(parent)]
                for key, value in list(parent.items()):
                    node = level.get(id(value))
                    if node is not None and node.object is value and isinstance(key, str):
                        yield (_Node(None, node.members, node, ("root", f"{module}.{key}" if module else key), depth),
                               "", file, 0)
                continue
            members: set[int] = set()
            best: tuple[_Node, Edge] | None = None
            for child, edge in _children(parent, level):  # the last of a container is the newest
                members |= child.members
                best = child, edge
            if best is None:
                continue
            known = seen.get(id(parent))
            if known is not None and members <= known.members:
                continue
            node = _Node(parent, frozenset(members | (known.members if known else frozenset())), best[0], best[1], depth)
            if _is(parent, type):
                yield (_Node(None, node.members, best[0], ("class", parent.__name__), depth), "",
                       getattr(sys.modules.get(parent.__module__), "__file__", "") or "", 0)
                continue
            above[id(parent)] = seen[id(parent)] = node
            if len(above) >= MOST_OBJECTS:
                break
        if not above:
            return
        level = above


def _children(parent: Any, level: dict[int, _Node]) -> Iterator[tuple[_Node, Edge]]:
    """The nodes of the level that ``parent`` refers to, with how; in a container in its order."""
    if _is(parent, dict):
        for key, value in list(parent.items()):
            for what, edge in ((key, ("is key", None)), (value, ("key", key))):
                node = level.get(id(what))
                if node is not None and node.object is what:
                    yield node, edge
        return
    if _is(parent, (list, tuple, collections.deque)) and not hasattr(parent, "_fields"):
        for i, value in enumerate(list(parent)):
            node = level.get(id(value))
            if node is not None and node.object is value:
                yield node, ("index", i)
        return
    for value in gc.get_referents(parent):
        node = level.get(id(value))
        if node is not None and node.object is value:
            edge = _edge(parent, value)
            if edge is not None:
                yield node, edge


def _path(node: _Node) -> tuple[str, int, str, list[Any]]:
    """The way down in words, its kind of place, the name of the container nearest to the tensor, and what it goes
    through."""
    text, place, container, through = "", VARIABLE, "", []
    at: _Node | None = node
    last_name = ""
    before = before_value = ""  # the kind of the edge before, and its name
    function: Any = None
    while at is not None and at.edge is not None:
        kind, value = at.edge
        held = at.object
        through.append(held)
        if kind in ("root", "class"):
            text, last_name = value, value.rpartition(".")[2]
        elif kind == "attr" or (kind == "key" and (before in ("dict", "class"))):
            # A module's parts go by their names alone.
            if value not in _PARTS:
                text += f".{value}"
                last_name = value
        elif kind == "key":
            if before_value in _PARTS:
                text += f".{value}"
                last_name = value
            else:
                text += f"[{_short(value)}]"
                place, container = max(place, CONTAINER), last_name
        elif kind == "index" and before == "closure":
            last_name = function.__code__.co_freevars[value]
            text += f", closure variable {last_name}"
        elif kind == "index":
            text += f"[{value}]"
            if _is(held, collections.deque) and held.maxlen is not None:
                place = max(place, BOUNDED)
            elif not _is(held, tuple):
                place = max(place, CONTAINER)
            container = last_name
        elif kind == "is key":
            text += " (a key)"
            place, container = KEY, last_name
        elif kind == "cache":
            text += " (functools cache)"
            if held.cache_parameters()["maxsize"] is not None and place != KEY:
                place = BOUNDED
        elif kind == "closure":
            function = value
        elif kind == "self":
            text += ".__self__"
        elif kind == "other":
            text += f", {value}"
        if kind in ("attr", "key") and _is(value, str) and value in HOOK_NAMES:
            place = HOOKS
        before, before_value = kind, value if kind in ("attr", "key") and _is(value, str) else ""
        at = at.child
    return text, place, container or last_name, through


def _short(key: Any) -> str:
    if isinstance(key, torch.Tensor):
        return "a tensor"
    text = repr(key)
    return text if len(text) <= 40 else text[:37] + "..."


_STORES = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put", "push"})


def _stores_into(tree: ast.AST, container: str) -> Iterator[int]:
    """Lines of statements that put something into what is called ``container``."""
    def is_it(target: ast.AST) -> bool:
        while isinstance(target, ast.Subscript):
            target = target.value
        return (isinstance(target, ast.Name) and target.id == container) or (
            isinstance(target, ast.Attribute) and target.attr == container)

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _STORES and is_it(node.func.value):
                yield node.lineno
            elif node.func.attr == "register_buffer" and node.args and getattr(node.args[0], "value", 0) == container:
                yield node.lineno
        elif isinstance(node, ast.AugAssign) and is_it(node.target):
            yield node.lineno
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                    # What begins as empty, or as a constant, stores nothing.
                    empty = isinstance(node.value, (ast.List, ast.Dict, ast.Constant)) or (
                        isinstance(node.value, ast.Call) and not node.value.args)
                    if is_it(part) and not (empty and not isinstance(part, ast.Subscript)):
                        yield node.lineno


def _files(through: Iterable[Any], more: list[str]) -> list[str]:
    """Where the line may stand: the files of the classes on the way, and ``more``."""
    files = []
    for held in through:
        if _is(held, types.FunctionType):
            files.append(held.__code__.co_filename)
            continue
        module = sys.modules.get(type(held).__module__)
        path = getattr(module, "__file__", None)
        if path and not path.startswith((_TORCH, _HERE)) and module.__name__ != "builtins":
            files.append(path)
        for cls in type(held).__mro__:
            for member in vars(cls).values():
                code = getattr(member, "__code__", None)
                if isinstance(code, types.CodeType):
                    files.append(code.co_filename)
    return [path for path in dict.fromkeys([*files, *more])
            if path and not path.startswith((_TORCH, _HERE, "<frozen")) and "/lib/python3" not in path]


def _stored_at(container: str, through: list[Any], more: list[str]) -> str:
    for path in _files(through, more):
        lines = linecache.getlines(path)
        if not lines:
            continue
        try:
            found = sorted(set(_stores_into(ast.parse("".join(lines)), container)))
        except SyntaxError:
            continue
        if found:
            return f"{path}:{found[-1]}"
    return ""


def describe(tensors: list[Any]) -> list[dict[str, Any]]:
    """The places that hold the tensors, those with most of them first."""
    sample = tensors[:MOST_TENSORS]
    roots = _Roots()
    hidden_ids = {id(tensors), id(sample), id(roots.locals), id(roots.globals)}
    ways = list(_search(sample, hidden_ids, roots))
    # Most tensors first; an argument is passed on, not kept; then the shortest way.
    ways.sort(key=lambda way: (-len(way[0].members), way[3] >= 10000, way[0].depth, way[3]))
    places, named = [], set()
    for node, where, file, _ in ways:
        fresh = node.members - named
        if not fresh or (places and len(fresh) < 3):
            continue
        named |= node.members
        path, place, container, through = _path(node)
        places.append({
            "tensors": len(tensors) if len(node.members) == len(sample) else len(node.members),
            "path": path + where, "place": place,
            "stored_at": _stored_at(container, through, [file, *roots.files]),
            "members": [sample[i] for i in sorted(node.members)]})
    return places
