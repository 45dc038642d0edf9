import copy
import gc
import json
import pickle

import pytest
import torch
from both_ways import check_same, equal, measured
from torch import nn

import lowtide

MIB = 1 << 20


def mlp(width=256, depth=6, dropout=0.1):
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout)) for _ in range(depth)])


def training(make=mlp, steps=3, optimizer=torch.optim.AdamW, rows=512, width=256):
    def body():
        model = make()
        optim = optimizer(model.parameters())
        x = torch.randn(rows, width)
        losses = []
        for _ in range(steps):
            optim.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optim.step()
            losses.append(loss.item())
        return [losses, [p.detach().clone() for p in model.parameters()], torch.get_rng_state()]

    return body


def test_results_are_the_plain_runs():
    report = check_same(training())
    assert report["recomputed_ops"] > 0
    assert report["recompute_s"] > 0


def test_report_keys():
    with lowtide.budget("1GiB") as budget:
        training(steps=2)()
        during = budget.report()
    report = budget.report()
    assert set(report) == {
        "limit_bytes", "share", "peak_bytes", "resident_growth_bytes", "outside_bytes", "steps", "step_s", "drops",
        "dropped_bytes", "recomputed_ops", "recompute_s", "spilled_tensors", "spilled_bytes", "spill_wait_s",
        "packed_tensors", "packed_bytes", "packed_into_bytes", "pack_s", "refusals", "planned_steps", "plan_departures",
        "plans", "planning_s", "smallest_budget_bytes", "budget_lower_bound_bytes", "program_bytes", "program_holds"}
    assert during["steps"] == report["steps"] == 1  # the second ends with the next one's beginning
    assert report["limit_bytes"] == 1 << 30
    json.dumps(report)


def test_steps_are_planned_from_the_second_on():
    report = check_same(training(steps=5), fraction=0.85)
    assert report["planned_steps"] > 0
    assert report["plan_departures"] == 0


def test_a_plan_that_cannot_be_read(tmp_path):
    with pytest.raises(lowtide.Error) as missing:
        lowtide.budget("1GiB", plan=tmp_path / "none.plan").start()
    assert missing.value.id == "LT0102"
    (tmp_path / "bad.plan").write_bytes(b"no plan")
    with pytest.raises(lowtide.Error) as bad:
        lowtide.budget("1GiB", plan=tmp_path / "bad.plan").start()
    assert bad.value.id == "LT0152"


def test_limits_as_int_text_and_share(room):
    with lowtide.budget(room + 5 * MIB) as budget:
        assert budget.report()["limit_bytes"] == room + 5 * MIB
    with lowtide.budget("50%") as budget:
        assert budget.report()["limit_bytes"] == 0
        training(steps=4)()
        assert budget.report()["share"] == 0.5
        assert budget.report()["limit_bytes"] > 0
    assert budget.report()["drops"] > 0


@pytest.mark.parametrize("limit", ["", "6 gigs", "0%", "101%", "fifty%", -1, 1.5, None, True])
def test_a_limit_that_cannot_be_read(limit):
    with pytest.raises(lowtide.UsageError) as caught:
        with lowtide.budget(limit):
            pass
    assert caught.value.id in ("LT0101", "LT0305")
    assert isinstance(caught.value, ValueError)


def test_use_out_of_order():
    budget = lowtide.budget("1GiB")
    with pytest.raises(lowtide.UsageError):
        budget.report()
    with budget:
        with pytest.raises(lowtide.UsageError):
            budget.start()
        budget.mark_step()
    with pytest.raises(lowtide.UsageError):
        budget.mark_step()
    with budget:  # again, as a cell of a notebook that runs twice
        pass


def check_refusal(error, limit):
    assert isinstance(error, lowtide.BudgetError)
    assert isinstance(error, lowtide.Error)
    assert isinstance(error, torch.OutOfMemoryError)
    assert error.id == "LT0301"
    assert error.details["limit_bytes"] == limit
    assert error.details["smallest_budget_bytes"] > 0
    assert "LT0301" in str(error)


def test_refused_in_forward(room):
    x = torch.randn(1024, 256)
    limit = room + 2 * MIB
    with lowtide.budget(limit) as budget:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            x @ torch.randn(256, 4096)
    check_refusal(caught.value, limit)
    assert budget.report()["refusals"] == 1
    assert caught.value.details["op"].startswith("aten::")


def test_refused_in_backward():
    x = torch.randn(64, 64, requires_grad=True)
    big = 8 * MIB
    y = x.sum().expand(big // 4)
    z = (y * 1.0).sum()
    del y
    gc.collect()
    limit = lowtide.meter().live_bytes + MIB
    with lowtide.budget(limit):
        with pytest.raises(lowtide.BudgetError) as caught:
            z.backward()
    check_refusal(caught.value, limit)
    z = (x.sum().expand(big // 4) * 1.0).sum()
    z.backward()  # usable afterwards
    assert x.grad is not None


def test_refused_in_the_optimizer():
    model = nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 512)).sum().backward()
    before = [p.detach().clone() for p in model.parameters()]
    limit = lowtide.meter().live_bytes + 64 * 1024
    with lowtide.budget(limit):
        with pytest.raises(lowtide.BudgetError) as caught:
            optimizer.step()
    check_refusal(caught.value, limit)
    assert all(a.equal(b) for a, b in zip(before, model.parameters()))


def test_errors_survive_copies_and_pickles():
    error = lowtide.BudgetError("no room [LT0301]", "LT0301", {"limit_bytes": 5})
    for other in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is lowtide.BudgetError
        assert (str(other), other.id, other.details) == (str(error), error.id, error.details)


def test_the_limit_that_a_refusal_names_carries_the_step():
    body = training(steps=3)
    _, peak, _ = measured(body)
    limit = lowtide.meter().live_bytes + peak // 3
    refusals = 0
    while True:
        gc.collect()
        try:
            with lowtide.budget(limit) as budget:
                measured(body)
            break
        except lowtide.BudgetError as error:
            assert error.details["smallest_budget_bytes"] > limit
            limit = error.details["smallest_budget_bytes"]
            refusals += 1
            del error
    assert 1 <= refusals < 40
    assert budget.report()["peak_bytes"] <= limit
    assert limit < lowtide.meter().live_bytes + peak


def test_events_and_a_trace(tmp_path):
    events = []
    body = training()
    _, peak, _ = measured(body)
    path = tmp_path / "trace.json"
    with lowtide.budget(lowtide.meter().live_bytes + peak * 6 // 10, on_event=events.append, trace=path):
        measured(body)
    kinds = {event["kind"] for event in events}
    assert {"drop", "recompute", "step"} <= kinds
    assert set(events[0]) == {"kind", "step", "op", "bytes", "live_bytes", "begin_s", "duration_s"}
    assert json.loads(path.read_text())
    with pytest.raises(lowtide.UsageError) as caught:
        with lowtide.budget("1GiB", trace=tmp_path / "none" / "trace.json"):
            pass
    assert caught.value.id == "LT0307"


def test_nested_and_consecutive():
    body = training()
    plain, peak, _ = measured(body)
    with lowtide.budget("4GiB") as outer:
        with lowtide.budget(lowtide.meter().live_bytes + peak * 6 // 10) as inner:
            first, _, _ = measured(body)
        second, _, _ = measured(body)
    assert equal(plain, first)
    assert equal(plain, second)
    assert inner.report()["drops"] > 0
    assert outer.report()["limit_bytes"] == 4 << 30


def test_verify_replay():
    check = training(steps=2)
    plain, _, _ = measured(check)
    with lowtide.budget("1GiB", verify_replay=True):
        again, _, _ = measured(check)
    assert plain[0] == again[0]


def test_tensors_that_the_program_holds_are_named_with_their_lines():
    kept = []
    x = torch.randn(1024, 512)
    w = torch.randn(512, 512, requires_grad=True)
    with lowtide.budget("1GiB") as budget:
        for _ in range(3):
            kept.append((x @ w).relu())
        report = budget.report()
    line = next(i for i, text in enumerate(open(__file__), 1) if "kept.append((x @ w)" in text)
    lines = {hold["line"] for hold in report["program_holds"] if hold["op"] == "aten::relu"}
    assert lines == {f"{__file__}:{line}"}
    assert report["program_bytes"] >= 3 * 1024 * 512 * 4


def test_a_held_tensor_is_never_taken_away():
    x = torch.randn(512, 512)
    w = torch.randn(512, 512, requires_grad=True)
    reference = [(x @ w).relu() * i for i in range(8)]
    with lowtide.budget(lowtide.meter().live_bytes + 40 * MIB):
        held = [(x @ w).relu() * i for i in range(8)]
        views = [h.numpy(force=True) for h in held]
        for _ in range(3):
            sum((x @ w).tanh().sum() for _ in range(4)).backward()
        assert all(a.equal(b) for a, b in zip(reference, held))
        assert all((a.detach().numpy() == b).all() for a, b in zip(reference, views))


def test_numpy_arrays_over_activations_do_not_dangle():
    x = torch.randn(512, 512)
    layers = [nn.Linear(512, 512) for _ in range(8)]

    def forward():
        arrays = []
        h = x
        for layer in layers:
            h = torch.tanh(layer(h))
            arrays.append(h.detach().numpy())
        return h, arrays

    plain, expected = forward()
    with lowtide.budget(lowtide.meter().live_bytes + 20 * MIB):
        h, arrays = forward()
        copies = [a.copy() for a in arrays]
        h.sum().backward()
        assert all((a == b).all() for a, b in zip(arrays, copies))
        assert all((a == b).all() for a, b in zip(arrays, expected))
    assert all((a == b).all() for a, b in zip(arrays, expected))


def test_a_write_through_numpy_is_never_a_wrong_gradient():
    layers = [nn.Linear(256, 256) for _ in range(6)]
    x = torch.randn(512, 256)

    def step(source):
        for layer in layers:
            layer.weight.grad = None
        h = source
        for layer in layers:
            h = torch.tanh(layer(h))
        loss = h.square().sum()
        source.numpy()[:] = 0.5  # behind torch's back; tanh's outputs were saved, the first linear's input too
        loss.backward()
        return [layer.weight.grad.clone() for layer in layers]

    source = x.clone()
    plain, peak, _ = measured(lambda: step(source))
    source = x.clone()
    gc.collect()
    try:
        with lowtide.budget(lowtide.meter().live_bytes + peak // 2):
            inside = step(source)
    except lowtide.DivergenceError as error:
        assert error.id == "LT0304"
    else:
        assert all(a.equal(b) for a, b in zip(plain, inside))


def test_meter():
    meter = lowtide.meter()
    live = meter.live_bytes
    tensor = torch.empty(1000, dtype=torch.float64)
    assert meter.live_bytes == live + 8000
    assert meter.peak_bytes == live + 8000
    del tensor
    assert meter.live_bytes == live
    meter.reset_peak()
    assert meter.peak_bytes == live
    assert set(meter.by_kind()) == {
        "parameters", "gradients", "optimizer_state", "saved", "program", "workspace"}
    assert sum(meter.by_kind().values()) == live
    assert sum(meter.peak_by_kind().values()) == meter.peak_bytes


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.AdamW(p), lambda p: torch.optim.AdamW(p, foreach=True),
    lambda p: torch.optim.AdamW(p, fused=True), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.Adagrad(p), lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    lambda p: torch.optim.Adafactor(p), lambda p: torch.optim.NAdam(p)])
def test_with_room_nothing_lives_longer_than_plainly(make):
    def body():
        model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
        optimizer = make(model.parameters())
        meter = lowtide.meter()
        live = []
        for _ in range(6):
            model(torch.ones(16, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            live.append(meter.live_bytes - base[0])
        return live

    base = [0]
    gc.collect()
    base[0] = lowtide.meter().live_bytes
    plain, peak, _ = measured(body)
    gc.collect()
    base[0] = lowtide.meter().live_bytes
    with lowtide.budget("4GiB"):
        inside, peak_inside, _ = measured(body)
    assert plain == inside
    assert peak == peak_inside
