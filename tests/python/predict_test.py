"""Peaks that are predicted, against peaks that are counted."""

import dataclasses
import gc
import json
import os
import pathlib
import random
import subprocess
import sys
import textwrap

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lowtide

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = pathlib.Path(os.environ.get("LOWTIDE_PROGRAM", ROOT / "build/release/bin/lowtide"))


class Net(nn.Module):
    def __init__(self, width=64, depth=3):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(width) for _ in range(depth)])

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + F.dropout(F.gelu(norm(layer(x))), 0.1, self.training)
        return x


def training(model, loss_of=lambda model, x: model(x).square().mean(), make=torch.optim.AdamW):
    optimizer = make([p for p in model.parameters() if p.requires_grad])

    def step(batch):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()

    return step, optimizer


def counted(step, batch, steps=3):
    gc.collect()
    meter = lowtide.meter()
    for _ in range(steps):
        step(batch)
    return meter.peak_bytes


def check(step, batch, exact=True, most_over=0.03):
    p = lowtide.predict(step, batch)
    truth = counted(step, batch)
    if exact:
        assert p.peak_bytes == truth, p
    else:
        assert -0.01 * truth <= p.peak_bytes - truth <= most_over * truth, (p.peak_bytes / truth, p)
    assert abs(p.peak_bytes - truth) <= p.error_bound * truth
    assert sum(p.by_kind.values()) == p.peak_bytes == sum(p.by_module.values())
    assert max(p.by_phase.values()) == p.peak_bytes
    return p


def test_to_the_byte():
    torch.manual_seed(0)
    model = Net()
    step, optimizer = training(model)
    p = check(step, torch.randn(256, 64))
    size = sum(t.numel() * 4 for t in model.parameters())
    assert p.by_kind["parameters"] == size
    assert p.by_kind["gradients"] <= size
    assert 2 * size <= p.by_kind["optimizer_state"] <= 2 * size + 100
    assert p.by_kind["saved"] > 0
    assert {"layers.0", "norms.2"} <= set(p.by_module)
    assert p.slices == [32, 64, 96] and p.way == "slices" and p.batch_size == 256


def test_nothing_large_is_allocated():
    step, _ = training(Net(depth=6))
    batch = torch.randn(4096, 64)
    meter = lowtide.meter()
    before = meter.live_bytes
    p = lowtide.predict(step, batch)
    assert meter.peak_bytes - before < (p.peak_bytes - before) / 2
    assert meter.live_bytes == before


def state_of(model, optimizer):
    return [
        [t.clone() for t in (*model.parameters(), *model.buffers())],
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        optimizer.state_dict(), torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()]


def assert_equal(a, b):
    if isinstance(a, torch.Tensor):
        assert a.equal(b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_equal(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("steps_before", [0, 2])
def test_everything_is_as_it_was(steps_before):
    torch.manual_seed(0)
    model = Net()
    schedulers = []

    def make(parameters):
        optimizer = torch.optim.AdamW(parameters)
        schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, 1))
        return optimizer

    step, optimizer = training(model, make=make)

    def whole_step(batch):
        step(batch)
        schedulers[0].step()
        random.random()
        numpy.random.rand()

    batch = torch.randn(64, 64)
    for _ in range(steps_before):
        whole_step(batch)
    before = state_of(model, optimizer)
    versions = [p._version for p in model.parameters()]
    gradients = [p.grad for p in model.parameters()]
    kept = {id(t) for s in optimizer.state.values() for t in s.values()}
    epoch = schedulers[0].last_epoch
    lowtide.predict(whole_step, batch)
    assert_equal(state_of(model, optimizer), before)
    assert [p._version for p in model.parameters()] == versions
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients))
    assert {id(t) for s in optimizer.state.values() for t in s.values()} == kept
    assert schedulers[0].last_epoch == epoch
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_training_afterwards_is_the_same():
    def losses(predicts):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.randn(64, 64)

        def step(batch):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        if predicts:
            lowtide.predict(step, batch)
        return [step(batch) for _ in range(4)], [p.detach().clone() for p in model.parameters()]

    plain, other = losses(False), losses(True)
    assert plain[0] == other[0]
    assert_equal(plain[1], other[1])


def test_after_steps_that_were_taken():
    step, _ = training(Net())
    batch = torch.randn(128, 64)
    for _ in range(2):
        step(batch)
    check(step, batch)


def test_when_a_step_fails_everything_is_as_it_was():
    model = Net()
    calls = []

    def loss_of(model, x):
        calls.append(len(x))
        if len(calls) == 6:
            raise RuntimeError("no more")
        return model(x).square().mean()

    step, optimizer = training(model, loss_of)
    batch = torch.randn(64, 64)
    before = state_of(model, optimizer)
    with pytest.raises(RuntimeError, match="no more"):
        lowtide.predict(step, batch)
    assert_equal(state_of(model, optimizer), before)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    check(step, torch.randn(64, 64))


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.AdamW(p, foreach=True), lambda p: torch.optim.AdamW(p, foreach=False),
    lambda p: torch.optim.AdamW(p, fused=True), lambda p: torch.optim.Adagrad(p), lambda p: torch.optim.RMSprop(p)])
def test_optimizers(make):
    check(training(Net(width=128), make=make)[0], torch.randn(40, 128))


def test_lbfgs():
    model = Net(depth=1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, history_size=2)

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    check(step, torch.randn(64, 64), exact=False)


def test_no_optimizer_of_torch():
    weight = torch.randn(64, 64, requires_grad=True)
    before = weight.detach().clone()

    def step(x):
        weight.grad = None
        (x @ weight).square().mean().backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)

    batch = torch.randn(512, 64)
    p = lowtide.predict(step, batch)
    assert weight.equal(before) and weight.grad is None
    assert any("no optimizer" in note for note in p.notes)
    assert counted(step, batch) == p.peak_bytes


def test_gradients_that_are_set_to_zero():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    check(step, torch.randn(100, 64))


def test_frozen_parameters():
    model = Net()
    for parameter in model.layers[0].parameters():
        parameter.requires_grad_(False)
    check(training(model)[0], torch.randn(128, 64))


class Experts(nn.Module):
    """A router sends each token to one of several experts."""

    def __init__(self, width=64, count=6):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                                      for _ in range(count)])

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for index in chosen.unique().tolist():
            rows = (chosen == index).nonzero()[:, 0]
            out = out.index_add(0, rows, weights[rows, None] * self.experts[index](flat[rows]))
        return out.view_as(x)


@pytest.mark.parametrize("seed", range(4))
def test_mixture_of_experts(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(Experts(), Experts())
    check(training(model)[0], torch.randn(64, 128, 64), exact=False)


def test_data_dependent_branch():
    torch.manual_seed(0)

    def loss_of(model, x):
        y = model(x)
        if (x.sum() * 1000).long() % 2:  # another one at each size
            y = y.sin().exp()
        return y.square().mean()

    check(training(Net(), loss_of)[0], torch.randn(100, 64), exact=False, most_over=0.3)


def test_the_square_of_the_batch():
    def loss_of(model, x):
        y = F.normalize(model(x), dim=1)
        return F.cross_entropy(y @ y.T, torch.arange(len(y)))

    p = check(training(Net(), loss_of)[0], torch.randn(200, 64))
    assert any("square" in note for note in p.notes)


def test_samples_of_many_sizes():
    random.seed(3)
    torch.manual_seed(3)
    model = Net()

    def loss_of(model, samples):
        longest = max(len(sample["x"]) for sample in samples)
        x = torch.stack([F.pad(sample["x"], (0, 0, 0, longest - len(sample["x"]))) for sample in samples])
        return model(x.flatten(0, 1)).square().mean()

    samples = [{"x": torch.randn(random.randint(4, 40), 64), "name": str(i)} for i in range(48)]
    p = check(training(model, loss_of)[0], samples, exact=False)
    assert any("differ in size" in note for note in p.notes)


def test_the_longest_sample_of_a_mask():
    torch.manual_seed(4)

    def loss_of(model, batch):
        x, mask = batch["x"], batch["mask"]
        length = int(mask.sum(1).max())
        return model(x[:, :length].flatten(0, 1)).square().mean()

    mask = (torch.arange(32) < torch.randint(4, 20, (48, 1))).long()
    mask[37] = 1
    check(training(Net(), loss_of)[0], {"x": torch.randn(48, 32, 64), "mask": mask})


def test_images_with_boxes():
    """As torchvision's detectors take them: lists of as many images and dicts."""
    model = nn.Conv2d(3, 8, 3, padding=1)

    def loss_of(model, batch):
        images, targets = batch
        return model(torch.stack(images)).mean() + sum(t["boxes"].sum() for t in targets)

    batch = [torch.randn(3, 16, 16) for _ in range(24)], [{"boxes": torch.rand(2, 4)} for _ in range(24)]
    assert check(training(model, loss_of)[0], batch).batch_size == 24


@dataclasses.dataclass
class Pair:
    x: torch.Tensor
    scale: float
    y: torch.Tensor


def test_nests():
    def loss_of(model, batch):
        return F.mse_loss(model(batch["pair"].x) * batch["pair"].scale, batch.pop("more")[0])

    x = torch.randn(32, 64)
    step, _ = training(Net(), loss_of)
    batch = {"pair": Pair(x, 2.0, x), "more": (torch.randn(32, 64), "name")}
    # The step takes something out of the batch each time.
    assert lowtide.predict(step, batch).peak_bytes == counted(lambda _: step(dict(batch)), None)


def test_micro_batches():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        for part in x.split(8):
            model(part).square().mean().backward()
        optimizer.step()

    check(step, torch.randn(64, 64), exact=False)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_batches_as_small_as_slices(size):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    p = check(training(model)[0], torch.randn(size, 64))
    assert p.way == ("whole" if size <= 3 else "slices")


def test_a_batch_that_is_not_there():
    model = Net()
    step, _ = training(model)
    real = torch.randn(512, 64)
    truth = lowtide.predict(step, real)
    there = real.numel() * 4
    meta = lowtide.predict(step, torch.empty(512, 64, device="meta"))
    assert meta.peak_bytes == truth.peak_bytes + there  # `real` is there too
    del real
    assert lowtide.predict(step, torch.empty(512, 64, device="meta")).peak_bytes == truth.peak_bytes
    expanded = lowtide.predict(step, torch.randn(1, 64).expand(512, 64))
    assert expanded.peak_bytes == truth.peak_bytes - there + 64 * 4


def test_without_contents():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    step, optimizer = training(model)
    batch = torch.randn(256, 64)
    before, parameters = state_of(model, optimizer), list(model.parameters())
    meter = lowtide.meter()
    live = meter.live_bytes
    p = lowtide.predict(step, batch, way="fake")
    assert meter.peak_bytes - live < 100_000
    assert all(a is b for a, b in zip(model.parameters(), parameters))
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], parameters))
    assert_equal(state_of(model, optimizer), before)
    assert p.way == "fake" and p.error_bound == 0.3 and "without contents" in p.notes[0]
    assert sum(p.by_kind.values()) == p.peak_bytes
    assert counted(step, batch) == pytest.approx(p.peak_bytes, rel=0.02)


def test_a_model_that_is_not_there():
    def loss_of(model, x):
        if (x > 0).all():  # contents that are not there
            x = x + 1
        return model(x).square().mean()

    with torch.device("meta"):
        model = Net()
    for parameter in model.layers[0].parameters():
        parameter.requires_grad_(False)
    p = lowtide.predict(training(model, loss_of)[0], torch.empty(512, 64, device="meta"))
    assert p.way == "fake" and any("looks at contents" in note for note in p.notes)
    del model
    gc.collect()
    real = Net()
    for parameter in real.layers[0].parameters():
        parameter.requires_grad_(False)
    assert counted(training(real, loss_of)[0], torch.randn(512, 64)) == pytest.approx(p.peak_bytes, rel=0.1)


def test_largest_batch():
    torch.manual_seed(0)
    model = Net()
    step, _ = training(model)
    floor = counted(step, torch.randn(1 << 5, 64))
    for budget in (floor + (1 << 20), floor + (5 << 20)):
        found = lowtide.largest_batch(step, torch.randn(8, 64), budget)
        gc.collect()
        assert counted(step, torch.randn(found, 64)) <= budget
        gc.collect()
        assert counted(step, torch.randn(found + 1, 64)) > budget
    assert lowtide.largest_batch(step, torch.randn(8, 64), 1000) == 0


def test_refusals():
    step, _ = training(Net())
    with lowtide.budget("1GiB"), pytest.raises(lowtide.UsageError, match="LT0331"):
        lowtide.predict(step, torch.randn(64, 64))
    with pytest.raises(lowtide.UsageError, match="LT0332"):
        lowtide.predict(step, {"scale": 3.0})
    with pytest.raises(lowtide.UsageError, match="LT0305"):
        lowtide.largest_batch(step, torch.randn(64, 64), -1)

    def nested(batch):
        lowtide.predict(step, torch.randn(64, 64))

    with pytest.raises(lowtide.UsageError, match="LT0331"):
        lowtide.predict(nested, torch.randn(64, 64))


SCRIPT = """
import lowtide, sys, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(512, 64))
size = int(sys.argv[sys.argv.index("--batch-size") + 1]) if "--batch-size" in sys.argv else 64
meter = lowtide.meter()
for epoch in range(3):
    batches = torch.utils.data.DataLoader(data, batch_size=size) if "--batch-size" not in sys.argv else data.tensors[0].split(size)
    for batch in batches:
        loss = model(batch[0] if isinstance(batch, list) else batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(meter.peak_bytes)
"""


@pytest.fixture(params=["program", "module"])
def lowtide_predict(request):
    start = [PROGRAM] if request.param == "program" else [sys.executable, "-m", "lowtide"]
    if request.param == "program" and not PROGRAM.exists():
        pytest.skip("the program is not built")

    def run(*words):
        return subprocess.run(
            [*start, "predict", "--python", sys.executable, *map(str, words)], capture_output=True, text=True,
            timeout=240)

    return run


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.mark.parametrize("words", [(), ("--batch-size", "64")])
def test_a_script(lowtide_predict, script, words):
    train = script(SCRIPT)
    truth = int(subprocess.run([sys.executable, train, *words], capture_output=True, text=True).stdout)
    done = lowtide_predict("--json", train, *words)
    assert done.returncode == 0, done.stderr
    p = json.loads(done.stdout)
    assert list(p) == [
        "batch_size", "peak_bytes", "by_kind", "by_phase", "by_module", "error_bound", "slices", "way", "phase", "op",
        "module", "notes"]
    assert p["batch_size"] == 64
    assert abs(p["peak_bytes"] - truth) <= 0.01 * truth
    text = lowtide_predict(train, *words)
    assert text.returncode == 0 and text.stdout.startswith("peak at batch 64: "), text.stderr


def test_scripts_that_cannot_be_cut(lowtide_predict, script):
    whole = script("""
        import torch
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
    """)
    done = lowtide_predict(whole)
    assert done.returncode == 1 and "LT0333" in done.stderr and "--batch-option" in done.stderr
    done = lowtide_predict("--batch-option", "--bs", whole)
    assert done.returncode == 1 and "LT0333" in done.stderr
    done = lowtide_predict(script("import torch\nraise ValueError('broken')"))
    assert done.returncode == 1 and "LT0334" in done.stderr and "broken" in done.stderr
    assert lowtide_predict().returncode == 2
