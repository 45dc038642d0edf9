#!/usr/bin/env python3
"""Runs golden cases of the command line and compares what they print.

    run.py --program build/release/bin/lowtide CASE_DIR...
    run.py --program ... --accept CASE_DIR...     # rewrite the expected files; review the diff

A case is a folder:
    command            one line: the words after `lowtide`; paths are relative to the repository
    expected_exit      the exit code
    expected_stdout    standard output
    expected_stderr    standard error; where absent, standard error is not compared
    normalise          optional; lines "REGEX => REPLACEMENT", applied to both outputs, for what may
                       differ between machines (times, rounding)
"""

import argparse
import difflib
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def normalised(case, text):
    rules = case / "normalise"
    if rules.exists():
        for line in rules.read_text().splitlines():
            if line.strip():
                pattern, replacement = line.split(" => ", 1)
                text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def run_case(program, case, accept):
    words = shlex.split((case / "command").read_text())
    done = subprocess.run(
        [program, *words], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    got = {
        "expected_exit": f"{done.returncode}\n",
        "expected_stdout": normalised(case, done.stdout),
        "expected_stderr": normalised(case, done.stderr),
    }
    good = True
    for name, text in got.items():
        path = case / name
        if name == "expected_stderr" and not path.exists():
            continue
        if accept:
            path.write_text(text)
        elif path.read_text() != text:
            good = False
            sys.stdout.writelines(
                difflib.unified_diff(
                    path.read_text().splitlines(keepends=True),
                    text.splitlines(keepends=True),
                    fromfile=str(path.relative_to(ROOT)),
                    tofile="printed",
                )
            )
    if not good:
        print(f"\n{case.name}: lowtide {shlex.join(words)} printed something else.")
        print(f"standard error was:\n{done.stderr}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("cases", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    good = [run_case(options.program, case.resolve(), options.accept) for case in options.cases]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
