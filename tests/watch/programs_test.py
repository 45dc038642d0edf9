"""The step watch on small programs: each of faulty/ is named by line and holder within a few steps; each mended, and each
of right/, gives no alarm.

A faulty program's first line says what is to be found. A line with `# mended: CODE` is faulty, and CODE is what stands in
its place in the mended program; a finding may name that line or one marked `# also here`.
"""

import pathlib
import re

import pytest
import torch

import lowtide

HERE = pathlib.Path(__file__).parent
FAULTY = sorted((HERE / "faulty").glob("*.py"))
RIGHT = sorted((HERE / "right").glob("*.py"))
MENDED = re.compile(r"^(\s*).*?# mended: (.*)$")


def mend(text):
    """The program with each faulty line replaced, on the same lines."""
    return "\n".join(m[1] + m[2] if (m := MENDED.match(line)) else line for line in text.split("\n"))


def watched(text, path, **options):
    """The report of a watch over the program."""
    torch.manual_seed(0)
    found = []
    with lowtide.watch(on_finding=found.append) as w:
        exec(compile(text, str(path), "exec"), {"__name__": "program", "__file__": str(path), "watch": w})
    report = w.report()
    assert report["findings"] == found
    return report


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_there_are_enough_programs():
    assert len(FAULTY) >= 30
    assert len(RIGHT) >= 20


@pytest.mark.parametrize("path", FAULTY, ids=lambda path: path.stem)
def test_faulty(path):
    text = path.read_text()
    kinds, held_by = re.match(r"# (.*), held by: (.*)", text).groups()
    lines = {f"{path}:{i}" for i, line in enumerate(text.split("\n"), 1) if "# mended: " in line or "# also here" in line}
    report = watched(text, path)
    alarms = [finding for finding in report["findings"] if finding["alarm"]]
    assert alarms, report
    named = [f for f in alarms if f["kind"] in kinds.split(" or ") and lines & {f["line"], f["stored_at"]}
             and f["held_by"].startswith(held_by)]
    assert named, "\n".join(str(finding) for finding in report["findings"])
    assert all(finding["chain"] and finding["fix"] for finding in named)
    assert named[0]["step"] <= (14 if "every_third" in path.stem or "gan" in path.stem else 7)
    if named[0]["kind"].startswith("graph"):
        assert named[0]["nodes_per_step"] > 0
    if named[0]["kind"] == "held_at_peak":
        assert named[0]["fall_bytes"] > 0


@pytest.mark.parametrize("path", FAULTY, ids=lambda path: path.stem)
def test_mended(path):
    report = watched(mend(path.read_text()), path)
    assert report["steps"] >= 9
    assert not [finding for finding in report["findings"] if finding["alarm"]]


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_right(path):
    report = watched(path.read_text(), path)
    assert report["steps"] >= 9
    assert not [finding for finding in report["findings"] if finding["alarm"]]
