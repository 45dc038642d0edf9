"""``lowtide run``: prepares the environment of another program and becomes it.

The other program is any Python script, unchanged. Its interpreter finds ``_inject/sitecustomize.py`` first on
PYTHONPATH, which waits for torch to be imported and then starts the budget (``_session.py``). So children that the
program starts (torchrun's workers) have a budget too.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import sys
from typing import NoReturn, Sequence

PACKAGE = pathlib.Path(__file__).resolve().parent
INJECT = pathlib.Path(__file__).parent / "_inject"
WRONG_USAGE = 2
NOT_FOUND = 127

DESCRIPTION = """\
Runs a program with a limit on the bytes of its CPU tensors:

  lowtide run --budget 6GiB -- python train.py --epochs 3
  lowtide run --budget 50% train.py --epochs 3

or watched, with or without a budget: what grows from step to step is named on stderr as it happens and at the end:

  lowtide run --watch train.py

A first word that ends in .py runs under --python, else the Python of VIRTUAL_ENV, else python3. A short report comes
on stderr at the end; exit code and signals are the program's own. The budget is per process: what the program starts
has one too, a DataLoader's workers have none."""


def fail(message: str, code: int = WRONG_USAGE) -> NoReturn:
    print(f"lowtide: {message}", file=sys.stderr)
    sys.exit(code)


def default_python() -> str:
    environment = os.environ.get("VIRTUAL_ENV")
    if environment:
        candidate = os.path.join(environment, "bin", "python")
        if os.access(candidate, os.X_OK):
            return candidate
    return "python3"


def command_of(verb: str, words: Sequence[str], python: str | None) -> list[str]:
    """The program to run, as the words of a command."""
    if words[0].endswith(".py"):
        return [python or default_python(), *words]
    if os.path.basename(words[0]).startswith("python"):
        for word in words[1:]:
            if not word.startswith("-") or word in ("-c", "-m", "-"):
                break
            if not word.startswith("--") and set(word) & set("EIS"):
                fail(f"{verb}: {words[0]} {word} keeps Python from finding what {verb} prepares (PYTHONPATH, site); "
                     f"leave {word} out, or use lowtide.budget(...) in the program")
    return list(words)


def environment_of(environment: dict[str, str]) -> dict[str, str]:
    """``environment`` with what the program needs to find this package."""
    prepared = {name: value for name, value in environment.items() if not name.startswith("LOWTIDE_RUN_")}
    path = [str(INJECT)] + [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
    prepared["PYTHONPATH"] = os.pathsep.join(path)
    prepared["LOWTIDE_PACKAGE_ROOT"] = str(INJECT.parent.parent)
    return prepared


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="lowtide run", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False)
    made.add_argument("--budget", metavar="B", help="a number of bytes, 6GiB, or a share of the step such as 50%%")
    made.add_argument("--watch", action="store_true", help="name what grows from step to step, and what keeps it")
    made.add_argument("--report", metavar="FILE", help="also write the report as JSON")
    made.add_argument("--spill", metavar="DIR", help="a directory: what cannot be computed again, or takes longer than to read back, "
                           "goes to a file there")
    made.add_argument("--plan", metavar="FILE", help="what to drop, as lowtide plan wrote it for a tape of the step")
    made.add_argument("--python", metavar="PROGRAM", help="the Python for a script")
    made.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="a script or a program")
    return made


def parser_of_record() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="lowtide record", description="Writes down what a training step of a program does, for lowtide plan.",
        allow_abbrev=False)
    made.add_argument("-o", "--output", metavar="FILE", default="step.tape", help="the tape; step.tape")
    made.add_argument("--python", metavar="PROGRAM", help="the Python for a script")
    made.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="a script or a program")
    return made


def record(arguments: Sequence[str]) -> NoReturn:
    options = parser_of_record().parse_args(arguments)
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        fail("record: what shall run? For example: lowtide record -o step.tape -- python train.py")
    check_folder("record", "the tape", options.output)
    become("record", words, options.python, {"LOWTIDE_RUN_TAPE": os.path.abspath(options.output)})


def run(arguments: Sequence[str]) -> NoReturn:
    options = parser().parse_args(arguments)
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.budget is None and not options.watch:
        fail("run: --budget is missing: a number of bytes, 6GiB, or a share of the step such as 50%; or --watch, to "
             "see what grows")
    if options.spill is not None and options.budget is None:
        fail("run: --spill needs --budget: without a limit nothing has to leave memory")
    if options.plan is not None and options.budget is None:
        fail("run: --plan needs --budget: without a limit nothing is dropped")
    if options.plan is not None and not os.path.isfile(options.plan):
        fail(f"run: --plan {options.plan}: no such file")
    if not words:
        fail("run: what shall run? For example: lowtide run --budget 6GiB -- python train.py")
    from lowtide._limit_text import problem_with

    problem = None if options.budget is None else problem_with(options.budget)
    if problem:
        fail(f"run: {problem}")
    if options.report:
        check_folder("run", "the report", options.report)
    if options.spill is not None and not os.path.isdir(options.spill):
        fail(f"run: --spill {options.spill}: no such directory")
    variables = {"LOWTIDE_RUN_REPORT": os.path.abspath(options.report) if options.report else ""}
    if options.budget is not None:
        variables["LOWTIDE_RUN_BUDGET"] = options.budget
    if options.spill is not None:
        variables["LOWTIDE_RUN_SPILL"] = os.path.abspath(options.spill)
    if options.plan is not None:
        variables["LOWTIDE_RUN_PLAN"] = os.path.abspath(options.plan)
    if options.watch:
        variables["LOWTIDE_RUN_WATCH"] = "1"
    become("run", words, options.python, variables)


def parser_of_predict() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="lowtide predict", formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        description="""\
Says what training steps of a program take, without running them at full size:

  lowtide predict train.py --epochs 3 --batch-size 64
  lowtide predict --json -- python train.py

The program is started a few times with a small batch, and ended after three training steps (steps of an optimizer of
torch.optim) each time. The batch is cut through the program's own option (one called --batch-size, --batch_size, -b,
..., or named with --batch-option), else through the DataLoaders that it makes.""")
    made.add_argument("--batch", metavar="N", type=int, help="predict for this batch size; else the program's own")
    made.add_argument("--batch-option", metavar="NAME", help="the program's option for its batch size, such as --bs")
    made.add_argument("--json", action="store_true", help="print the result as JSON")
    made.add_argument("--python", metavar="PROGRAM", help="the Python for a script")
    made.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="a script or a program")
    return made


def predict(arguments: Sequence[str]) -> NoReturn:
    words = list(arguments)
    if "--batch-option" in words[:-1]:  # the option that it names begins with dashes, too
        at = words.index("--batch-option")
        words[at:at + 2] = [f"--batch-option={words[at + 1]}"]
    options = parser_of_predict().parse_args(words)
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        fail("predict: what shall run? For example: lowtide predict train.py --batch-size 64")
    if options.batch is not None and options.batch < 1:
        fail(f"predict: --batch {options.batch}: a batch has one sample or more")
    command = command_of("predict", words, options.python)
    if shutil.which(command[0]) is None:
        fail(f"predict: {command[0]}: not found, or not a program", NOT_FOUND)
    # The fit needs the bindings, so torch: in the Python that has the package.
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(INJECT.parent.parent), *(p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p)])
    wanted = json.dumps({"command": command, "batch": options.batch, "batch_option": options.batch_option,
                         "json": options.json})
    sys.stdout.flush()
    code = "import sys; from lowtide import _script_prediction; sys.exit(_script_prediction.main(sys.argv[1]))"
    os.execve(sys.executable, [sys.executable, "-c", code, wanted], environment)


def check_folder(verb: str, what: str, path: str) -> None:
    if not os.access(os.path.dirname(os.path.abspath(path)), os.W_OK):
        fail(f"{verb}: cannot write {what} {path}: no such folder, or not writable")


def become(verb: str, words: Sequence[str], python: str | None, variables: dict[str, str]) -> NoReturn:
    """The program ``words`` in place of this one."""
    command = command_of(verb, words, python)
    program = shutil.which(command[0])
    if program is None:
        fail(f"{verb}: {command[0]}: not found, or not a program", NOT_FOUND)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, command, {**environment_of(dict(os.environ)), **variables})


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:
        run(words[1:])
    if words[:1] == ["record"]:
        record(words[1:])
    if words[:1] == ["predict"]:
        predict(words[1:])
    if not words or words[0] in ("-h", "--help"):
        print("usage: python -m lowtide run --budget B [--plan FILE] [--spill DIR] [--watch] [--report FILE] [--python PROGRAM] "
              "[--] COMMAND ...\n"
              "       python -m lowtide run --watch [--report FILE] [--python PROGRAM] [--] COMMAND ...\n"
              "       python -m lowtide record [-o FILE] [--python PROGRAM] [--] COMMAND ...\n"
              "       python -m lowtide predict [--json] [--batch N] [--python PROGRAM] [--] COMMAND ...\n\n"
              "The other commands are those of the program `lowtide`.")
        sys.exit(0 if words else WRONG_USAGE)
    fail(f"{words[0]}: this is a command of the program `lowtide`, not of `python -m lowtide`, which knows: run, record, predict")
