"""``lowtide run`` and ``python -m lowtide run``."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = pathlib.Path(os.environ.get("LOWTIDE_PROGRAM", ROOT / "build/release/bin/lowtide"))

TRAIN = """
import sys, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    loss = model(torch.randn(512, 256)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(sys.argv[1:], loss.item())
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.fixture(params=["program", "module"])
def lowtide_run(request):
    start = [PROGRAM] if request.param == "program" else [sys.executable, "-m", "lowtide"]
    if request.param == "program" and not PROGRAM.exists():
        pytest.skip("the program is not built")

    def run(*words, **options):
        return subprocess.run(
            [*start, "run", *map(str, words)], capture_output=True, text=True, timeout=120, **options)

    return run


@pytest.fixture
def script(tmp_path):
    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_a_script_unchanged(lowtide_run, script, tmp_path):
    train, report = script(TRAIN), tmp_path / "out.json"
    plain = subprocess.run([sys.executable, train, "3", "--budget", "x"], capture_output=True, text=True)
    done = lowtide_run("--budget", "50%", "--report", report, "--python", sys.executable, train, "3", "--budget", "x")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.returncode == 3
    assert "lowtide: peak" in done.stderr
    assert "ops run again" in done.stderr
    written = json.loads(report.read_text())
    assert written["drops"] > 0
    assert written["share"] == 0.5


@pytest.mark.parametrize("dashes", [True, False])
def test_a_program(lowtide_run, script, dashes):
    words = ["--", sys.executable] if dashes else [sys.executable]
    done = lowtide_run("--budget", "1GiB", *words, script(TRAIN), "0", "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['0', '--help']")
    assert "nothing was dropped" in done.stderr


def test_the_environments_python(lowtide_run, script, tmp_path):
    environment = {**os.environ, "VIRTUAL_ENV": str(tmp_path)}
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text(f"#!/bin/sh\nexport WAS_CHOSEN=1\nexec {sys.executable} \"$@\"\n")
    python.chmod(0o755)
    done = lowtide_run(
        "--budget", "1GiB", script("import os; print(os.environ['WAS_CHOSEN'])"), env=environment)
    assert done.stdout == "1\n", done.stderr


def test_a_refusal_reaches_the_script(lowtide_run, script):
    done = lowtide_run("--budget", "4MiB", "--python", sys.executable, script(TRAIN))
    assert done.returncode == 1
    assert "lowtide.errors.BudgetError" in done.stderr
    assert "allocations refused" in done.stderr


def test_a_script_that_never_imports_torch(lowtide_run, script):
    done = lowtide_run("--budget", "1GiB", "--python", sys.executable, script("import sys; print('torch' in sys.modules)"))
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", 0)


def test_signals_end_it(lowtide_run, script):
    path = script("import os, signal, torch; os.kill(os.getpid(), signal.SIGTERM)")
    done = lowtide_run("--budget", "1GiB", "--python", sys.executable, path)
    assert done.returncode == -signal.SIGTERM


def test_interrupted(script):
    path = script("import torch, time; print('ready', flush=True); time.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-m", "lowtide", "run", "--budget", "1GiB", "--python", sys.executable, str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert "lowtide: peak" in err
    assert process.returncode == -signal.SIGINT


def test_children_have_a_budget_and_workers_have_none(lowtide_run, script, tmp_path):
    script("import lowtide._session as s; import torch; print('child', s._budget is not None)", "child.py")
    path = script(f"""
        import subprocess, sys, torch
        from torch.utils.data import DataLoader, Dataset
        class Data(Dataset):
            def __len__(self): return 2
            def __getitem__(self, i):
                import lowtide._session as s
                try:
                    s._budget.report()
                    limited = s._budget._core is not None
                except AttributeError:
                    limited = False
                torch.zeros(64 << 18)      # 64 MiB: more than the budget
                return int(limited)
        if __name__ == "__main__":
            for context in ("fork", "spawn"):
                print(context, [int(b) for b in DataLoader(Data(), num_workers=1, batch_size=None,
                                                           multiprocessing_context=context)], flush=True)
            subprocess.run([sys.executable, {str(tmp_path / "child.py")!r}])
    """)
    done = lowtide_run("--budget", "32MiB", "--python", sys.executable, path)
    lines = done.stdout.splitlines()
    assert lines[1] == "spawn [0, 0]", done.stderr
    assert lines[0].startswith("fork ["), done.stderr
    assert lines[2] == "child True"


def test_fairscale_is_there(lowtide_run, script):
    path = script("""
        import torch
        from fairscale.nn.checkpoint import checkpoint_wrapper
        print(checkpoint_wrapper.__module__)
    """)
    done = lowtide_run("--budget", "1GiB", "--python", sys.executable, path)
    assert done.stdout == "lowtide._checkpoint\n", done.stderr


def test_the_environments_own_sitecustomize_still_runs(script, tmp_path):
    script("import os; os.environ['OWN_SITE'] = 'ran'", "sitecustomize.py")
    path = script("import os, torch; print(os.environ['OWN_SITE'])")
    done = subprocess.run(
        [sys.executable, "-m", "lowtide", "run", "--budget", "1GiB", "--python", sys.executable, path],
        capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])})
    assert done.stdout == "ran\n", done.stderr


def test_spill(lowtide_run, script, tmp_path):
    path = script("""
        import torch

        class Opaque(torch.autograd.Function):  # what it saves cannot be computed again
            @staticmethod
            def forward(ctx, x):
                y = torch.empty_like(x)
                y.numpy()[:] = x.detach().numpy() * 0.9
                ctx.save_for_backward(y)
                return y.clone()

            @staticmethod
            def backward(ctx, gradient):
                return gradient * ctx.saved_tensors[0]

        w = torch.linspace(0.1, 1, 1 << 16).requires_grad_()
        y = w * 1
        for _ in range(40):
            y = Opaque.apply(y)
        y.sum().backward()
        print(w.grad.sum().item())
    """)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True)
    folder = tmp_path / "spill"
    folder.mkdir()
    words = ["--budget", "4MiB", "--python", sys.executable, path]
    assert lowtide_run(*words).returncode != 0
    done = lowtide_run("--spill", folder, *words)
    assert done.stdout == plain.stdout, done.stderr
    assert "spilled" in done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("words, said, code", [
    (["train.py"], "--budget is missing", 2),
    (["--budget", "1GiB"], "", 2),
    (["--budget", "many", "train.py"], "cannot read that", 2),
    (["--budget", "0%", "train.py"], "over 0%", 2),
    (["--budget", "1GiB", "--report", "/no/such/folder/out.json", "train.py"], "cannot write the report", 2),
    (["--budget", "1GiB", "--spill", "/no/such/folder", "train.py"], "no such directory", 2),
    (["--spill", "/tmp", "--watch", "train.py"], "--spill needs --budget", 2),
    (["--budget", "1GiB", "--", "no-such-program"], "not found", 127),
    (["--budget", "1GiB", "--", sys.executable, "-I", "train.py"], "-I keeps Python from finding", 2),
])
def test_wrong_use(lowtide_run, words, said, code, tmp_path):
    done = lowtide_run(*words, cwd=tmp_path, env={**os.environ, "VIRTUAL_ENV": sys.prefix})
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_another_version_of_torch_is_an_error(tmp_path):
    import lowtide

    package = tmp_path / "lowtide"
    package.mkdir()
    here = pathlib.Path(lowtide.__file__).parent
    for path in here.iterdir():
        if path.name != "_built_for.py":
            (package / path.name).symlink_to(path)
    (package / "_built_for.py").write_text('TORCH_VERSION = "2.99.0"\n')
    done = subprocess.run(
        [sys.executable, "-c", "import lowtide"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "ImportError: this lowtide was built for torch 2.99.0, but torch 2.13" in done.stderr


def test_record(script, tmp_path):
    tape = tmp_path / "step.tape"
    done = subprocess.run(
        [PROGRAM, "record", "-o", tape, "--python", sys.executable, script(TRAIN), "0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert tape.stat().st_size > 500
    plan = subprocess.run([PROGRAM, "plan", tape, "--json"], capture_output=True, text=True)
    assert plan.returncode == 0, plan.stderr
    assert "train.py:" in plan.stdout
    empty = subprocess.run(
        [sys.executable, "-m", "lowtide", "record", "-o", tmp_path / "none.tape", "--python", sys.executable,
         script("import torch")], capture_output=True, text=True)
    assert "LT0309" in empty.stderr
