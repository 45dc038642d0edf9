#!/usr/bin/env python3
"""Mends copies of all programs with `lowtide lint --fix`, with and without --suggested.

What comes out must be Python, and mending it once more must change nothing. What --diff shows must
be what --fix writes, and each rule that has fixes must have had one here.
"""

import argparse
import ast
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
WITH_FIXES = {
    "eval-with-grad", "fairscale-missing", "graph-not-needed", "hidden-not-detached",
    "history-accumulated", "history-stored", "retain-graph", "tensor-held", "update-with-grad",
    "zero-grad-missing",
}


def lint(program, *arguments):
    return subprocess.run([program, "lint", *map(str, arguments)], capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    program = parser.parse_args().program
    problems = []
    mended_rules = set()
    for flags in ([], ["--suggested"]):
        with tempfile.TemporaryDirectory() as folder:
            copies = pathlib.Path(folder)
            for source in ("programs", "more_programs"):
                shutil.copytree(HERE / source, copies / source)
            files = sorted(copies.rglob("*.py"))
            before = {file: file.read_text() for file in files}
            for finding in json.loads(lint(program, "--json", copies).stdout):
                fix = finding["fix"]
                if fix and (fix["safe"] or flags):
                    mended_rules.add(finding["rule"])
            shown = lint(program, "--diff", *flags, copies).stdout
            if any(file.read_text() != text for file, text in before.items()):
                problems.append("--diff wrote to a file")
            lint(program, "--fix", *flags, copies)
            once = {file: file.read_text() for file in files}
            for file, text in once.items():
                try:
                    ast.parse(text)
                except SyntaxError as error:
                    problems.append(f"{file.name} {flags}: {error}")
                added = [line for line in text.splitlines() if line not in before[file].splitlines()]
                for line in added:
                    if "+" + line not in shown.splitlines():
                        problems.append(f"{file.name} {flags}: --diff does not show {line!r}")
            lint(program, "--fix", *flags, copies)
            for file, text in once.items():
                if file.read_text() != text:
                    problems.append(f"{file.name} {flags}: mending again changes it")
    if mended_rules != WITH_FIXES:
        problems.append(f"rules with fixes: {sorted(mended_rules ^ WITH_FIXES)}")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
