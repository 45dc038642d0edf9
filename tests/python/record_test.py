"""What stands on tapes that Python records."""

import json
import os
import pathlib
import subprocess

import pytest
import torch
from torch import nn

import lowtide

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = pathlib.Path(os.environ.get("LOWTIDE_PROGRAM", ROOT / "build/release/bin/lowtide"))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.linear2(torch.tanh(self.linear1(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList([Layer() for _ in range(4)])

    def forward(self, x):
        for layer in self.encoder.layers:
            x = layer(x)
        return x


def record(path, size, model, steps=2, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(size, 64)
    with lowtide.record(path, **options):
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


def plan(*words):
    if not PROGRAM.exists():
        pytest.skip("the program is not built")
    done = subprocess.run([PROGRAM, "plan", *map(str, words), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ops_have_the_module_that_they_run_in(tmp_path):
    torch.manual_seed(0)
    record(tmp_path / "step.tape", 128, Net())
    found = plan(tmp_path / "step.tape")
    modules = {row["module"]: row["bytes"] for row in found["peak"]["by_module"]}
    # The results of tanh, which stay for the backward pass.
    assert all(modules[f"encoder.layers.{i}"] >= 128 * 256 * 4 for i in range(4))
    assert "encoder.layers.3.linear2" in modules
    assert sum(modules.values()) == found["natural_peak_bytes"]
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_the_batch_size_stands_on_the_tape(tmp_path):
    model = Net()
    for size in (64, 128, 256):
        record(tmp_path / f"{size}.tape", size, model)
    tapes = [tmp_path / f"{size}.tape" for size in (64, 128, 256)]
    found = plan(*tapes, "--largest-batch", "--budget", "8MiB")
    assert found["check"]["batch"] == 256
    assert found["check"]["predicted_bytes"] == found["check"]["measured_bytes"]
    record(tmp_path / "named.tape", 64, model, batch_size=7)
    done = subprocess.run(
        [PROGRAM, "plan", tmp_path / "named.tape", tmp_path / "named.tape", "--largest-batch", "--budget", "8MiB"],
        capture_output=True, text=True)
    assert "these have 7 and 7" in done.stderr


def test_num_cp(tmp_path):
    """The peaks foretold for checkpointed layers against steps with such layers."""
    torch.manual_seed(0)
    model = Net()
    record(tmp_path / "step.tape", 512, model)
    found = plan(tmp_path / "step.tape", "--num-cp", "--budget", "1GiB")
    assert found["layers"] == "encoder.layers" and found["num_cp"] == 0
    x = torch.randn(512, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for point in found["points"]:
        meter = lowtide.meter()
        for _ in range(2):
            optimizer.zero_grad()
            h = x
            for i, layer in enumerate(model.encoder.layers):
                h = lowtide.checkpoint(layer, h) if i < point["num_cp"] else layer(h)
            h.square().mean().backward()
            optimizer.step()
            del h
        # A checkpoint may hold a layer's result twice, which the tape cannot tell.
        assert 0 <= meter.peak_bytes - point["peak_bytes"] <= 512 * 64 * 4, point
