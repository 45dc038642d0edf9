#!/usr/bin/env python3
"""Runs every code block of the pages for Python and the programs in examples/python, and compares what they print.

A ```python block runs where the block before it ended, in one process for the page; after `<!-- file: NAME -->` it is
written to that file instead. A ```sh block runs in a shell, with `lowtide` and `python` on the PATH, and ends with 0, or
as `<!-- exit code: N -->` before it says. A ```text block is what the block before it printed, stdout first and then
stderr; `...` in it stands for anything.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("LOWTIDE_PROGRAM", ROOT / "build/release/bin/lowtide"))
PAGES = (
    "docs/python.md", "docs/migration.md", "docs/limits.md", "docs/habits.md", "docs/long_sequences.md",
    "docs/large_layers.md")
BLOCK = re.compile(
    r"^(?:<!-- (?:file: (?P<file>\S+)|exit code: (?P<code>\d+)) -->\n)?```(?P<language>python|sh|text)\n(?P<text>.*?)^```$",
    re.M | re.S)
# Ends the output of one block; the blocks of a page run in one process.
MARK = "----8<----"


def blocks_of(page):
    """(line, language, file, exit code, text) for each block of the page."""
    text = (ROOT / page).read_text()
    for found in BLOCK.finditer(text):
        yield text.count("\n", 0, found.start("text")), found["language"], found["file"], int(found["code"] or 0), found["text"]


def as_pattern(expected):
    return re.compile(".*?".join(re.escape(part) for part in expected.strip().split("...")), re.S)


def environment_for(folder):
    """`lowtide` and `python` are those of this build."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "lowtide").symlink_to(PROGRAM)
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def check_page(page):
    """Runs the page's blocks; returns what is wrong."""
    blocks = list(blocks_of(page))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = environment_for(folder)
        program, numbers, printed = [], [], {}
        for number, (line, language, file, code, text) in enumerate(blocks):
            if file is not None:
                (folder / file).write_text(text)
            elif language == "sh":
                done = subprocess.run(
                    ["bash", "-eu", "-o", "pipefail", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
                if done.returncode != code:
                    return [f"{page}:{line}: exit code {done.returncode}: {done.stderr}"]
                printed[number] = done.stdout + done.stderr
            elif language == "python":
                # Traceback lines and reported lines are those within the block.
                program.append(f"exec(compile({text!r}, {f'{page}:{line}'!r}, 'exec'))\nprint({MARK!r})\n")
                numbers.append(number)
        if program:
            (folder / "page.py").write_text("".join(program))
            done = subprocess.run(
                [sys.executable, "page.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
            if done.returncode != 0:
                return [f"{page}: {done.stderr}"]
            printed.update(zip(numbers, done.stdout.split(f"{MARK}\n")))
        problems = []
        for number, (line, language, _, _, text) in enumerate(blocks):
            if language != "text":
                continue
            found = printed.get(number - 1)
            if found is None:
                problems.append(f"{page}:{line}: a text block that no code block stands before")
            elif not as_pattern(text).fullmatch(found.strip()):
                problems.append(f"{page}:{line}: printed was\n{found}")
        return problems


def check_example(path):
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    return [] if done.returncode == 0 else [f"{path.relative_to(ROOT)}: {done.stderr}"]


def check_lint(path):
    """The linter finds the habit in the example that shows it, and mends it."""
    with tempfile.TemporaryDirectory() as name:
        copy = pathlib.Path(shutil.copy(path, name))
        found = subprocess.run([PROGRAM, "lint", copy], capture_output=True, text=True, timeout=60)
        if found.returncode != 1 or "[history-accumulated]" not in found.stdout:
            return [f"lint {path.name}: {found.stdout}{found.stderr}"]
        subprocess.run([PROGRAM, "lint", "--fix", copy], capture_output=True, timeout=60)
        mended = subprocess.run([PROGRAM, "lint", copy], capture_output=True, text=True, timeout=60)
        return [] if mended.returncode == 0 else [f"lint --fix {path.name}: {mended.stdout}{mended.stderr}"]


def main():
    problems = []
    for page in PAGES:
        problems += check_page(page)
    for path in sorted((ROOT / "examples/python").glob("*.py")):
        problems += check_example(path)
    problems += check_lint(ROOT / "examples/python/history_accumulated.py")
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
