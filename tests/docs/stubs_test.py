#!/usr/bin/env python3
"""Holds python/lowtide/_core.pyi against the module: the same names, and the same parameters in the same order."""

import ast
import pathlib
import re
import sys

from lowtide import _core

STUB = pathlib.Path(__file__).resolve().parents[2] / "python/lowtide/_core.pyi"


def parameters_of_stub(function):
    """A parameter after which the signature says `/` has no name of its own."""
    positional = [re.sub(r"^_*arg\d+$", "", a.arg) for a in function.args.posonlyargs]
    return positional + [a.arg for a in function.args.args if a.arg != "self"]


def parameters_of_binding(function):
    """pybind11 writes the signature into the docstring's first line: name(self: T, a: int = 1) -> int."""
    line = function.__doc__.splitlines()[0]
    inside = line[line.index("(") + 1:line.rindex(" -> ") - 1]
    depth, begin, parts = 0, 0, []
    for i, c in enumerate(inside):
        depth += (c in "[(") - (c in "])")
        if c == "," and depth == 0:
            parts.append(inside[begin:i])
            begin = i + 1
    parts.append(inside[begin:])
    names = [part.split(":")[0].strip() for part in parts if part.strip()]
    return [re.sub(r"^arg\d+$", "", name) for name in names if name != "self"]


def of_stub(body):
    """Name to parameters; None for what is no function; a dict for a class."""
    found = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = of_stub(node.body)
        elif isinstance(node, ast.FunctionDef):
            is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)
            found[node.name] = None if is_property else parameters_of_stub(node)
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = None
    return found


def of_module(owner):
    found = {}
    for name, value in vars(owner).items():
        if name.startswith("_") and name != "__init__":
            continue
        if name == "__init__" and " -> " not in value.__doc__:  # a class that is made in C++ only
            continue
        if isinstance(value, type):
            found[name] = of_module(value)
        elif callable(value):
            found[name] = parameters_of_binding(value)
        else:
            found[name] = None
    return found


def main():
    stub, module = of_stub(ast.parse(STUB.read_text()).body), of_module(_core)
    problems = []

    def compare(where, a, b):
        for name in sorted({*a, *b}):
            if name not in a:
                problems.append(f"{where}{name} is missing")
            elif name not in b:
                problems.append(f"{where}{name} is not in the module")
            elif isinstance(a[name], dict) and isinstance(b[name], dict):
                compare(f"{name}.", a[name], b[name])
            elif a[name] != b[name]:
                problems.append(f"{where}{name}: {a[name]} here, {b[name]} in the module")

    compare("", stub, module)
    for problem in problems:
        print(f"python/lowtide/_core.pyi: {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
