"""Spilling, packing, attach() and the resident set, from Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import lowtide

MIB = 1 << 20


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def deep_net(layers=24, width=256):
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)])


def train(net, optimizer, steps=3, batch=256):
    torch.manual_seed(7)
    losses = []
    for _ in range(steps):
        loss = net(torch.randn(batch, net[0][0].in_features)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def outcome(net, losses):
    return losses, [p.detach().clone() for p in net.parameters()]


def same(a, b):
    return a[0] == b[0] and all(torch.equal(x, y) for x, y in zip(a[1], b[1], strict=True))


def plain_run():
    net = deep_net()
    optimizer = torch.optim.AdamW(net.parameters())
    meter = lowtide.meter()
    start = meter.live_bytes
    result = outcome(net, train(net, optimizer))
    return result, start, meter.peak_bytes, meter.live_bytes


@pytest.mark.parametrize("always", [False, True])
def test_a_tenth_of_the_activations(tmp_path, always):
    expected, start, peak, static = plain_run()
    net = deep_net()
    optimizer = torch.optim.AdamW(net.parameters())
    before = lowtide.meter().live_bytes
    limit = before + (static - start) + (peak - static) // 10 + 3 * MIB // 2  # and one op's inputs and results
    with lowtide.budget(limit, spill=tmp_path, always_put_away=always) as budget:
        losses = train(net, optimizer)
    report = budget.report()
    assert report["peak_bytes"] <= limit
    assert report["spilled_bytes"] > 0 or report["recomputed_ops"] > 0
    if always:
        assert report["spilled_tensors"] > 40
    assert same(outcome(net, losses), expected)
    assert os.listdir(tmp_path) == []


def test_attach_below_the_static_bytes(tmp_path):
    expected, _, _, _ = plain_run()
    net = deep_net()
    optimizer = torch.optim.AdamW(net.parameters())
    parameters = sum(p.nbytes for p in net.parameters())
    limit = lowtide.meter().live_bytes - parameters + 2 * parameters  # of the four times that AdamW takes
    with lowtide.budget(limit, spill=tmp_path) as budget:
        budget.attach(optimizer)
        losses = train(net, optimizer)
    assert budget.report()["peak_bytes"] <= limit
    assert same(outcome(net, losses), expected)
    for state in optimizer.state.values():
        assert state["exp_avg"].sum().isfinite()


def test_attach_needs_a_directory():
    net = deep_net(1)
    with lowtide.budget("1GiB") as budget, pytest.raises(lowtide.UsageError) as caught:
        budget.attach(torch.optim.SGD(net.parameters(), lr=0.1))
    assert caught.value.id == "LT0316"


def test_numpy_over_a_parameter_keeps_it(tmp_path):
    net = deep_net()
    weight = net[0][0].weight
    view = weight.detach().numpy()
    before = view.copy()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    parameters = sum(p.nbytes for p in net.parameters())
    limit = lowtide.meter().live_bytes - parameters // 2 + 4 * MIB
    with lowtide.budget(limit, spill=tmp_path) as budget:
        budget.attach(optimizer)
        train(net, optimizer, steps=1, batch=8)
        assert weight.data_ptr() == view.__array_interface__["data"][0]
    assert (view == before).all()


def test_masks_and_zeros_are_packed():
    torch.manual_seed(1)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.5)) for _ in range(12)])
    x = torch.randn(1024, 256)

    def gradients():
        torch.manual_seed(2)
        net.zero_grad()
        net(x).sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    expected = gradients()
    net.zero_grad()
    with lowtide.budget(lowtide.meter().live_bytes + 24 * MIB, pack=True, always_put_away=True) as budget:
        got = gradients()
    report = budget.report()
    assert report["packed_tensors"] > 10
    assert report["packed_into_bytes"] < 0.6 * report["packed_bytes"]
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


RESIDENT = """
    import json, sys, tempfile
    import torch
    from torch import nn
    import lowtide
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if sys.argv[1] == "conv":
        layers = []
        for i in range(8):
            layers += [nn.Conv2d(3 if i == 0 else 32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
        net, x = nn.Sequential(*layers), torch.randn(16, 3, 128, 128)
    else:
        block = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
        net, x = nn.TransformerEncoder(block, 6, enable_nested_tensor=False), torch.randn(8, 256, 256)

    def status(name):
        for line in open("/proc/self/status"):
            if line.startswith(name):
                return int(line.split()[1]) << 10

    net(x[:1]).sum().backward()  # what libtorch makes once
    net.zero_grad()
    meter = lowtide.meter()
    live, before = meter.live_bytes, status("VmRSS")
    added = {"conv": 500 << 20, "transformer": 500 << 20}[sys.argv[1]]
    limit = live + int(added * float(sys.argv[2]))
    with tempfile.TemporaryDirectory() as spill, lowtide.budget(limit, spill=spill) as budget:
        for _ in range(3):
            net(x).square().mean().backward()
            net.zero_grad()
        report = budget.report()
    print(json.dumps({"growth": status("VmHWM") - before, "room": limit - live, **report}))
"""


@pytest.mark.parametrize("model", ["conv", "transformer"])
def test_resident_memory_follows_the_limit(model):
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RESIDENT), model, "0.5"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["peak_bytes"] > 0.7 * seen["limit_bytes"]
    assert seen["growth"] <= seen["room"] + 64 * MIB + seen["outside_bytes"]
    # What is said to be outside is not just whatever is left over.
    assert seen["outside_bytes"] < 150 * MIB


def test_memory_outside_of_tensors_is_seen():
    net = deep_net(4)
    with lowtide.budget("1GiB") as budget:
        held = bytearray(os.urandom(1)) * (120 * MIB)
        net(torch.randn(64, 256)).sum().backward()
        net(torch.randn(64, 256)).sum().backward()
        outside = budget.report()["outside_bytes"]
    assert len(held) == 120 * MIB
    assert 110 * MIB < outside < 200 * MIB


def test_a_reserve_lowers_the_limit():
    with lowtide.budget(lowtide.meter().live_bytes + 10 * MIB, reserve="6MiB"):
        torch.empty(3 * MIB, dtype=torch.uint8)
        with pytest.raises(lowtide.BudgetError):
            torch.empty(5 * MIB, dtype=torch.uint8)


# ---- what attached memory may not do ----

BLOCK = 256 * 256 * 4


def linear_stack(layers=8):
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(layers)])
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)


def fill_until_refused():
    blocks = []
    with pytest.raises((lowtide.BudgetError, RuntimeError)):
        while True:
            blocks.append(torch.full((256, 256), 7.0))


def is_away(tensor):
    try:
        tensor.data_ptr()
    except RuntimeError as error:
        assert "spill file" in str(error)
        return True
    return False


def test_arrays_of_gradients_stay(tmp_path):
    net, optimizer = linear_stack()
    x = torch.randn(4, 256)
    arrays, copies = [], []
    with lowtide.budget(lowtide.meter().live_bytes + 14 * BLOCK, spill=tmp_path) as budget:
        budget.attach(optimizer)
        for _ in range(5):
            net(x).square().mean().backward()
            optimizer.step()
            gradient = net[0].weight.grad
            gradient.sum()
            arrays.append(gradient.numpy())
            copies.append(arrays[-1].copy())
            optimizer.zero_grad()
    assert budget.report()["spilled_tensors"] > 0
    assert all((a == c).all() for a, c in zip(arrays, copies, strict=True))


def test_arrays_of_replaced_data_stay(tmp_path):
    net, optimizer = linear_stack()
    with lowtide.budget(lowtide.meter().live_bytes + 4 * BLOCK, spill=tmp_path) as budget:
        budget.attach(optimizer)
        weight = net[0].weight
        array = weight.detach().numpy()
        expected = array.copy()
        weight.data = weight.data.clone()
        fill_until_refused()
        assert (array == expected).all()


@pytest.mark.parametrize("frozen", [False, True])
def test_checkpointed_regions_of_attached_weights(tmp_path, frozen):
    net, optimizer = linear_stack()
    net.requires_grad_(not frozen)
    torch.manual_seed(5)
    x = torch.randn(4, 256, requires_grad=True)

    def loss():
        h = x
        for layer in net:
            h = lowtide.checkpoint(lambda y, layer=layer: torch.tanh(layer(y)), h)
        return h.sum()

    expected = torch.autograd.grad(loss(), x)[0]
    with lowtide.budget(lowtide.meter().live_bytes - 3 * BLOCK, spill=tmp_path) as budget:
        budget.attach(optimizer)
        got = torch.autograd.grad(loss(), x)[0]
    assert budget.report()["spilled_tensors"] > 0
    assert torch.equal(got, expected)


def test_a_lost_part_of_the_file_loses_no_more(tmp_path, capfd):
    net, optimizer = linear_stack(12)
    with lowtide.budget(lowtide.meter().live_bytes + 2 * BLOCK, spill=tmp_path) as budget:
        budget.attach(optimizer)
        fill_until_refused()
        assert sum(is_away(p) for p in net.parameters()) > 4
        for name in os.listdir("/proc/self/fd"):
            path = f"/proc/self/fd/{name}"
            if os.path.exists(path) and str(tmp_path) in os.readlink(path) and os.path.isfile(path):
                file = os.open(path, os.O_RDWR)
                os.pwrite(file, b"\1" * 100, BLOCK + 1000)
                os.close(file)
    lost = 0
    for parameter in net.parameters():
        try:
            parameter.sum()
        except RuntimeError as error:
            assert "checksum differs" in str(error)
            lost += 1
    assert lost == 1
    assert "cannot be had" in capfd.readouterr().err


def test_an_op_whose_memory_cannot_be_had_does_nothing(tmp_path):
    net, _ = linear_stack()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, fused=True)
    net(torch.randn(4, 256)).square().mean().backward()
    before = [p.detach().clone() for p in net.parameters()]
    with lowtide.budget(lowtide.meter().live_bytes + 6 * BLOCK, spill=tmp_path) as budget:
        budget.attach(optimizer)
        with pytest.raises(RuntimeError, match="budget: cannot allocate"):
            optimizer.step()
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
