"""``lowtide predict``: a program's peak from small runs of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

from lowtide import _core, _predict, _run
from lowtide._logged_run import STEPS

# As programs call it; -b and --bs only with a number after them.
OPTION = re.compile(r"^(-b|--bs|--batch|--?(?:[a-z]+[-_])*batch[-_]?size)(=\d+)?$", re.IGNORECASE)
NO_PROBE = 2  # samples of the first run
FAILED = 1


def _fail(message: str, id: str) -> int:
    print(f"lowtide: predict: {message} [{id}]", file=sys.stderr)
    return FAILED


def _find_option(words: list[str], name: str | None) -> tuple[int, str, int] | None:
    """Where a batch size stands in a command: the word's place, what is before the number, and the number."""
    for place, word in enumerate(words):
        if name is not None:
            start = re.fullmatch(re.escape(name) + r"(=\d+)?", word)
        else:
            start = OPTION.match(word)
        if start is None:
            continue
        if "=" in word:
            option, number = word.split("=", 1)
            return place, option + "=", int(number)
        if place + 1 < len(words) and words[place + 1].isdigit():
            return place + 1, "", int(words[place + 1])
    return None


class _Runs:
    def __init__(self, command: list[str], option: tuple[int, str, int] | None, folder: str) -> None:
        self.command = command
        self.option = option
        self.folder = folder
        self.loader_sizes: list[int] = []

    def run(self, batch: int) -> tuple[Any, int, str]:
        """The log of one run, how many steps it made, and why it is none."""
        command = list(self.command)
        if self.option is not None:
            place, before, _ = self.option
            command[place] = f"{before}{batch}"
        path = os.path.join(self.folder, f"{batch}.json")
        environment = _run.environment_of(dict(os.environ))
        environment.update({"LOWTIDE_RUN_PREDICT": path,
                            "LOWTIDE_RUN_PREDICT_BATCH": "0" if self.option is not None else str(batch)})
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not os.path.exists(path):
            why = done.stderr.strip().splitlines()[-1:] or ["it imported no torch"]
            return None, 0, f"the program ended with code {done.returncode}: {why[0]}"
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        self.loader_sizes = found["loader_sizes"]
        log = _core.allocation_log_of(found["log"])
        log.batch_size = batch
        why = ""
        if found["steps"] < STEPS:
            last = done.stderr.strip().splitlines()[-1:]
            why = f"the program ended after {found['steps']} steps of an optimizer, with code {done.returncode}"
            why += f": {last[0]}" if last and done.returncode else ""
        return log, found["steps"], why


def _report(p: _predict.Prediction) -> str:
    size = _core.format_bytes
    lines = [f"peak at batch {p.batch_size}: {size(p.peak_bytes)} ({p.peak_bytes} bytes), within "
             f"{100 * p.error_bound:.1f} %, from runs with {', '.join(map(str, p.slices))}",
             f"  in {p.phase}" + (f", in {p.op}" if p.op else "") + (f" of {p.module}" if p.module else "")]
    for title, parts in (("by kind", p.by_kind), ("highest by phase", p.by_phase)):
        lines.append(f"{title}:")
        lines += [f"  {name:<20}{size(count):>12}" for name, count in parts.items() if count]
    lines.append("by module:")
    modules = sorted(p.by_module.items(), key=lambda item: -item[1])
    shown = [item for item in modules if item[1]][:12]
    lines += [f"  {name:<40}{size(count):>12}" for name, count in shown]
    others = p.peak_bytes - sum(count for _, count in shown)
    if others:
        lines.append(f"  {'[others]':<40}{size(others):>12}")
    lines += [f"note: {note}" for note in p.notes]
    return "\n".join(lines)


def main(wanted: str) -> int:
    options = json.loads(wanted)
    # The interpreter's own words hold no batch size.
    option = _find_option(options["command"], options["batch_option"])
    if options["batch_option"] is not None and option is None:
        return _fail(f"the command has no {options['batch_option']} with a number; give the program its batch size with "
                     "it", "LT0333")
    with tempfile.TemporaryDirectory(prefix="lowtide-predict-") as folder:
        runs = _Runs(options["command"], option, folder)
        _, steps, why = runs.run(NO_PROBE)
        if steps < STEPS:
            return _fail(f"no {STEPS} training steps were seen: {why or 'it took no step of torch.optim'}. What counts is the "
                         "step of an optimizer of torch.optim", "LT0334")
        if option is None and not runs.loader_sizes:
            return _fail("cannot tell the batch size: the command has no option such as --batch-size N, and the program "
                         "makes no DataLoader. Name its option with --batch-option, or use lowtide.predict(step, batch) "
                         "in the program", "LT0333")
        full = options["batch"] or (option[2] if option is not None else runs.loader_sizes[0])
        logs = []
        for batch in _predict.small_sizes(full):
            log, steps, why = runs.run(batch)
            if steps < STEPS:
                return _fail(f"with a batch of {batch}: {why}", "LT0334")
            logs.append(log)
        fit = _core.fit_peak(logs, full)
        if fit["scattered_points"] and full > 10:
            for batch in (logs[-1].batch_size + 2, logs[-1].batch_size + 4):
                if batch < full:
                    log, steps, why = runs.run(batch)
                    if steps == STEPS:
                        logs.append(log)
            logs.sort(key=lambda log: log.batch_size)
            fit = _core.fit_peak(logs, full)
    notes = _predict.notes_of(fit)
    notes.append("the batch was cut through " + (
        f"the program's option {options['command'][option[0] - 1] if not option[1] else option[1][:-1]}"
        if option is not None else "its DataLoaders"))
    p = _predict.prediction_of(full, fit, 0, "slices" if full > 3 else "whole", [log.batch_size for log in logs], notes)
    print(json.dumps(p.to_dict(), indent=2) if options["json"] else _report(p))
    return 0
