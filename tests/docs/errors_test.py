#!/usr/bin/env python3
"""Holds the error ids in the sources against docs/errors.md: each id stands in both or in neither."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ID = re.compile(r"\bLT\d{4}\b")


def ids_in_sources():
    found = {}
    for folder in ("include", "src", "cli", "python"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".h", ".cpp", ".py"):
                for name in re.findall(r'"(LT\d{4})"', path.read_text()):
                    found.setdefault(name, path.relative_to(ROOT))
    return found


def main():
    text = (ROOT / "docs/errors.md").read_text()
    documented = re.findall(r"^### (LT\d{4}): ", text, flags=re.MULTILINE)
    problems = [f"{name} is described twice" for name in set(documented) if documented.count(name) > 1]
    if documented != sorted(documented):
        problems.append("the ids are not in order")
    thrown = ids_in_sources()
    problems += [
        f"{name}, thrown in {path}, is not described"
        for name, path in sorted(thrown.items())
        if name not in documented
    ]
    problems += [f"{name} is described but never thrown" for name in documented if name not in thrown]
    for problem in problems:
        print(f"docs/errors.md: {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
