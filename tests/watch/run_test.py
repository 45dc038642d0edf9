"""``lowtide run --watch``, and lowtide.watch() beside a budget, threads and forks."""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import lowtide

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = pathlib.Path(os.environ.get("LOWTIDE_PROGRAM", ROOT / "build/release/bin/lowtide"))
TRAIN = (pathlib.Path(__file__).parent / "faulty/list_of_losses.py")
PLAIN = (pathlib.Path(__file__).parent / "right/workers.py")


@pytest.fixture(params=["program", "module"])
def lowtide_run(request):
    start = [PROGRAM] if request.param == "program" else [sys.executable, "-m", "lowtide"]
    if request.param == "program" and not PROGRAM.exists():
        pytest.skip("the program is not built")

    def run(*words):
        return subprocess.run([*start, "run", *map(str, words)], capture_output=True, text=True, timeout=300)

    return run


def test_a_script_unchanged(lowtide_run, tmp_path):
    report = tmp_path / "out.json"
    done = lowtide_run("--watch", "--report", report, "--python", sys.executable, TRAIN)
    assert done.returncode == 0, done.stderr
    line = next(i for i, text in enumerate(TRAIN.read_text().split("\n"), 1) if "# mended: " in text)
    lines = done.stderr.splitlines()
    # Once when it was found, and once in the report.
    said = rf"step 5: memory grows by \d+ B and 6 graph nodes a step: .*`losses\[\d+\]` \({TRAIN}:{line}\)"
    assert re.match(f"lowtide: {said}", lines[0])
    assert re.match(r"lowtide: watched 1\d steps, \d+ ops: 1 finding, 0 notes", lines[1])
    assert re.match(f"  {said}", lines[2])
    assert len(lines) == 3
    written = json.loads(report.read_text())
    assert list(written) == ["watch"]
    assert list(written["watch"]) == ["steps", "ops", "findings"]
    (finding,) = written["watch"]["findings"]
    assert list(finding) == [
        "kind", "alarm", "step", "op", "line", "stored_at", "held_by", "chain", "bytes_per_step", "nodes_per_step",
        "graph_nodes", "peak_bytes", "fall_bytes", "fix"]
    assert finding["stored_at"] == f"{TRAIN}:{line}"


def test_beside_a_budget(lowtide_run, tmp_path):
    report = tmp_path / "out.json"
    done = lowtide_run("--budget", "1GiB", "--watch", "--report", report, "--python", sys.executable, TRAIN)
    assert done.returncode == 0, done.stderr
    assert "lowtide: peak" in done.stderr
    written = json.loads(report.read_text())
    assert written["limit_bytes"] == 2**30
    assert written["watch"]["findings"][0]["held_by"].startswith("losses[")


def test_workers_are_left_alone(lowtide_run):
    done = lowtide_run("--watch", "--python", sys.executable, PLAIN)
    assert done.returncode == 0, done.stderr
    assert len(re.findall("lowtide: watched", done.stderr)) == 1
    assert "nothing grows" in done.stderr


def test_neither_budget_nor_watch(lowtide_run):
    done = lowtide_run("--python", sys.executable, TRAIN)
    assert done.returncode == 2
    assert "--watch" in done.stderr


def model_and_step(kept):
    weight = torch.randn(32, 32, requires_grad=True)

    def step():
        loss = (torch.randn(16, 32) @ weight).square().mean()
        loss.backward()
        weight.grad = None
        kept.append(loss)

    return step


def test_several_watches_and_one_after_the_other():
    kept = []
    step = model_and_step(kept)
    with lowtide.watch(on_finding=lambda finding: None) as outer:
        with lowtide.watch(on_finding=lambda finding: None) as inner:
            for _ in range(8):
                step()
        for _ in range(2):
            step()
    assert [f["held_by"][:5] for f in outer.report()["findings"]] == ["kept["]
    assert inner.report()["findings"] == outer.report()["findings"]
    assert inner.report()["steps"] < outer.report()["steps"]
    kept.clear()
    with lowtide.watch(on_finding=lambda finding: None) as again:
        for _ in range(8):
            step()
    assert len(again.report()["findings"]) == 1


def test_the_same_numbers_with_and_without():
    def train():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(6):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    plain = train()
    with lowtide.watch():
        watched = train()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched))


def test_a_watch_keeps_nothing_alive():
    meter = lowtide.meter()
    with lowtide.watch():
        weight = torch.randn(256, 256, requires_grad=True)
        before = meter.live_bytes
        out = torch.randn(64, 256) @ weight
        (out.exp() + 1).sum()
        del out
        assert meter.live_bytes == before


def test_steps_of_other_threads_are_seen():
    kept = []
    step = model_and_step(kept)

    def work():
        for _ in range(8):
            step()

    with lowtide.watch(on_finding=lambda finding: None) as w:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert w.report()["findings"][0]["held_by"].startswith("kept[")


def test_a_forked_child_has_none():
    kept = []
    step = model_and_step(kept)
    with lowtide.watch(on_finding=lambda finding: os._exit(3)):
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            for _ in range(8):
                step()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_error_in_the_listener_ends_nothing(monkeypatch):
    kept, said = [], []
    step = model_and_step(kept)
    monkeypatch.setattr(sys, "unraisablehook", lambda error: said.append(str(error.exc_value)))

    def listener(finding):
        raise RuntimeError("no")

    with lowtide.watch(on_finding=listener) as w:
        for _ in range(8):
            step()
    assert said == ["no"]
    assert len(w.report()["findings"]) == 1


def test_out_of_order():
    w = lowtide.watch()
    for call in (w.report, w.text, w.json, w.step):
        with pytest.raises(lowtide.UsageError, match="LT0320"):
            call()
    with w:
        with pytest.raises(lowtide.UsageError, match="LT0320"):
            w.start()
    assert w.report() == {"steps": 0, "ops": 0, "findings": []}


def test_the_text_of_a_finding(tmp_path, capfd):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent("""
        import torch
        weight = torch.randn(8, 8, requires_grad=True)
        total = 0
        for i in range(8):
            loss = (torch.randn(4, 8) @ weight).square().mean()
            loss.backward()
            total = total + loss
    """))
    with lowtide.watch():
        exec(compile(script.read_text(), str(script), "exec"), {"__name__": "program"})
    text = capfd.readouterr().err
    assert re.fullmatch(
        rf"lowtide: step \d: memory grows by \d+ B and 3 graph nodes a step: graph of \d+ nodes of ended steps held by "
        rf"the tensor stored at `total` \({script}:8\), which each step makes from the one before; made by aten::add at "
        rf"{script}:8\. Fix: add the number, not the tensor: loss\.item\(\), or loss\.detach\(\), instead of loss\n", text), text
