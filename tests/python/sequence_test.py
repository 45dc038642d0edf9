import gc

import pytest
import torch
from both_ways import equal
from torch import nn
from torch.nn import functional as F

import lowtide


def unroll(step, state, inputs=None, length=None, **_):
    """The twin of lowtide.scan: the loop."""
    outputs = []
    leaves, spec = torch.utils._pytree.tree_flatten(() if inputs is None else inputs)
    parts = [leaf.unbind(0) for leaf in leaves]
    for t in range(len(parts[0]) if parts else length):
        if inputs is None:
            state, output = step(state)
        else:
            state, output = step(state, torch.utils._pytree.tree_unflatten([part[t] for part in parts], spec))
        outputs.append(output)
    return state, torch.utils._pytree.tree_map(lambda *column: torch.stack(column), *outputs)


def same(program, **options):
    """Runs ``program(scan)`` with the loop and with lowtide.scan from the same seed; all results must be equal.

    Returns the reports of the scans."""
    reports = []

    def scan(*args, **more):
        reports.append(lowtide.ScanReport())
        return lowtide.scan(*args, **{**options, **more}, report=reports[-1])

    results = []
    for way in (unroll, scan):
        torch.manual_seed(3)
        results.append([program(way), torch.get_rng_state()])
    assert equal(*results)
    return reports


def cell_step(cell):
    def step(state, x):
        after = cell(x, state)
        return after, after[0] if isinstance(after, tuple) else after

    return step


CELLS = [nn.LSTMCell, nn.GRUCell, nn.RNNCell]


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("steps", [1, 2, 3, 29])
@pytest.mark.parametrize("memory", [None, "20KiB", "24KiB", "60KiB", "1GiB"])
def test_cells(kind, steps, memory):
    def program(scan):
        cell = kind(5, 8)
        h = torch.randn(4, 8, requires_grad=True)
        state = (h, torch.randn(4, 8, requires_grad=True)) if kind is nn.LSTMCell else h
        x = torch.randn(steps, 4, 5, requires_grad=True)
        last, out = scan(cell_step(cell), state, x)
        loss = out.square().mean() + (last[0] if isinstance(last, tuple) else last).sin().sum()
        loss.backward()
        return [loss, out, last, x.grad, h.grad, [p.grad for p in cell.parameters()]]

    report, = same(program, memory=memory)
    if steps in (1, 29):
        assert report.unrolled == (steps == 1 or memory == "1GiB")


def test_runs_are_those_of_the_schedule():
    cell = nn.LSTMCell(5, 8)
    x = torch.randn(200, 4, 5)
    for memory in ("20KiB", "24KiB", "32KiB", "64KiB", "200KiB"):
        report = lowtide.ScanReport()
        (h, _), _ = lowtide.scan_cell(cell, x, memory=memory, report=report)
        h.sum().backward()
        assert not report.unrolled
        assert report.graph_runs == 200
        # One block more than the optimum for each block that the first pass went past without room to keep a state.
        assert report.forward_runs == 200
        assert report.forward_runs + report.backward_runs <= 1.1 * report.planned_runs + 2 * report.block_steps


def test_weights_that_the_rest_of_the_program_uses_too():
    def program(scan):
        cell = nn.LSTMCell(8, 8)
        state = (torch.zeros(4, 8), torch.zeros(4, 8))
        x = torch.randn(17, 4, 8, requires_grad=True)
        before = x @ cell.weight_hh[:8]
        state, out = scan(cell_step(cell), state, before)
        state, again = scan(cell_step(cell), state, out)
        y = again @ cell.weight_ih[:8] + cell.bias_hh[:8]
        (y.square().sum() + out.sum()).backward()
        return [x.grad, [p.grad for p in cell.parameters()]]

    reports = same(program, memory="24KiB")
    assert len(reports) == 2 and not any(report.unrolled for report in reports)


def test_gradients_add_to_those_that_are_there():
    def program(scan):
        cell = nn.GRUCell(8, 8)
        for _ in range(3):
            _, out = scan(cell_step(cell), torch.zeros(4, 8), torch.randn(17, 4, 8))
            out.square().sum().backward()
        return [p.grad for p in cell.parameters()]

    same(program, memory="20KiB")


@pytest.mark.parametrize("memory", ["20KiB", "40KiB"])
def test_captured_tensors_with_a_history(memory):
    def program(scan):
        v, g = torch.randn(8, 8, requires_grad=True), torch.randn(8, 1, requires_grad=True)
        b = torch.randn(8, requires_grad=True)
        w = g * v / v.norm(dim=1, keepdim=True)
        both = w * 2  # captured as well, and made of another captured one

        def step(h, x):
            h = torch.tanh(F.linear(h, w, b) + F.linear(x, both) + F.linear(x * h, w))
            return h, (h * b).sum(1)

        x = torch.randn(23, 4, 8)
        h, y = scan(step, torch.zeros(4, 8), x)
        (y.sum() + w.sum() + h.sum()).backward()
        return [v.grad, g.grad, b.grad]

    same(program, memory=memory)


@pytest.mark.parametrize("memory", ["24KiB", "80KiB"])
@pytest.mark.parametrize("cached", [True, False])
def test_autocast(memory, cached):
    def program(scan):
        cell = nn.LSTMCell(8, 8)
        head = nn.Linear(8, 8)
        x = torch.randn(19, 4, 8, requires_grad=True)

        def step(state, x):
            state = cell(x, state)
            return state, head(state[0])

        state = (torch.zeros(4, 8), torch.zeros(4, 8))
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cached):
            state, y = scan(step, state, x)
            state, z = scan(step, state, y.float())  # the casts are in the cache already
            z = head(z)
        (z.float().square().sum() + y.float().sum()).backward()
        return [x.grad, z, [p.grad for p in cell.parameters()], [p.grad for p in head.parameters()]]

    reports = same(program, memory=memory)
    assert not any(report.unrolled for report in reports)


def test_autocast_inside_the_step():
    def program(scan):
        cell = nn.GRUCell(8, 8)

        def step(h, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = F.linear(x, cell.weight_hh[:8]) + F.linear(h, cell.weight_ih[:8])
            h = cell(y.float(), h)
            return h, h

        _, y = scan(step, torch.zeros(4, 8), torch.randn(19, 4, 8))
        y.sum().backward()
        return [p.grad for p in cell.parameters()]

    same(program, memory="30KiB")


@pytest.mark.parametrize("memory", ["24KiB", "30KiB", "90KiB"])
def test_random_numbers(memory):
    def program(scan):
        cell = nn.GRUCell(8, 8)
        own = torch.Generator().manual_seed(5)

        def step(h, x):
            noise = torch.rand(4, 8, generator=own)
            h = cell(F.dropout(x, 0.3), F.dropout(h, 0.2) * noise)
            return h, h + torch.randn(4, 8)

        _, y = scan(step, torch.zeros(4, 8), torch.randn(31, 4, 8), generators=[own])
        loss = (y * torch.rand_like(y)).sum()
        loss.backward()
        return [y, torch.rand(3), own.get_state(), [p.grad for p in cell.parameters()]]

    same(program, memory=memory)


def test_nested_states_and_several_inputs():
    def program(scan):
        a, b = nn.GRUCell(8, 8), nn.LSTMCell(8, 8)
        memory = torch.randn(4, 6, 8, requires_grad=True)

        def step(state, inputs):
            h = a(inputs["x"], state["h"])
            scores = torch.softmax((state["memory"] * h[:, None]).sum(-1), -1)
            read = (scores[..., None] * state["memory"]).sum(1) * inputs["mask"]
            pair = b(read, state["pair"])
            total = state["total"] + pair[0].square().sum()
            after = {"h": h, "pair": pair, "memory": state["memory"], "total": total, "count": state["count"] + 1}
            return after, {"y": pair[0], "twice": [h, h]}

        zeros = torch.zeros(4, 8)
        state = {"h": zeros, "pair": (zeros, zeros), "memory": memory, "total": torch.zeros(()),
                 "count": torch.zeros((), dtype=torch.int64)}
        inputs = {"x": torch.randn(21, 4, 8, requires_grad=True), "mask": torch.rand(21, 4, 1)}
        state, out = scan(step, state, inputs)
        assert state["count"] == 21
        loss = state["total"] + (out["y"] * out["twice"][0]).sum() + out["twice"][1].sum()
        loss.backward()
        return [loss, memory.grad, inputs["x"].grad, [p.grad for m in (a, b) for p in m.parameters()]]

    reports = same(program, memory="80KiB")
    assert not reports[0].unrolled


def test_states_that_are_views_and_changed_in_place():
    def program(scan):
        w = torch.randn(8, 16, requires_grad=True)

        def step(state, x):
            h, c = state
            c = c.mul_(0.5)
            gates = torch.tanh(h + x) @ w
            h, add = gates.chunk(2, 1)
            return (h, c + add), (h.T, (c * add).sum())

        state = (torch.zeros(4, 8), torch.zeros(4, 8))
        (h, c), (y, s) = scan(step, state, torch.randn(21, 4, 8))
        (y.sum() + c.sum() + s.sum()).backward()
        return [h, c, w.grad]

    # The twin changes the zeros that it was given, too: each gets its own.
    same(program, memory="24KiB")


def test_without_inputs():
    def program(scan):
        w = torch.randn(8, 8, requires_grad=True)
        h, y = scan(lambda h: (torch.tanh(h @ w), h.sum()), torch.ones(2, 8), length=40)
        (h.sum() + y.sum()).backward()
        return [h, y, w.grad]

    same(program, memory="16KiB")


def test_retained_graphs_and_parts_of_the_gradients():
    def program(scan):
        cell = nn.GRUCell(8, 8)
        h0 = torch.zeros(4, 8, requires_grad=True)
        x = torch.randn(21, 4, 8, requires_grad=True)
        h, y = scan(cell_step(cell), h0, x)
        found = [torch.autograd.grad(y.sum(), cell.weight_hh, retain_graph=True),
                 torch.autograd.grad(h.sum(), [x, h0], retain_graph=True),
                 torch.autograd.grad(y[3].sum(), [x, cell.bias_ih], retain_graph=True)]
        y.square().sum().backward()
        return [found, x.grad, h0.grad, [p.grad for p in cell.parameters()]]

    same(program, memory="20KiB")


def test_hooks_run_once():
    def program(scan):
        cell = nn.GRUCell(8, 8)
        calls = []
        cell.weight_hh.register_hook(lambda grad: calls.append(1) or grad * 2)
        _, y = scan(cell_step(cell), torch.zeros(4, 8), torch.randn(21, 4, 8))
        y.sum().backward()
        return [len(calls), cell.weight_hh.grad]

    same(program, memory="20KiB")


def test_scans_and_regions_inside_a_step():
    def program(scan):
        inner, outer = nn.GRUCell(8, 8), nn.GRUCell(8, 8)

        def step(h, x):
            g, _ = scan(cell_step(inner), h, x)
            h = lowtide.checkpoint(outer, g, h) + inner.bias_ih[:8]
            return h, h.sum()

        h, y = scan(step, torch.zeros(4, 8), torch.randn(9, 7, 4, 8, requires_grad=True), memory="120KiB")
        y.sum().backward()
        return [h, y, [p.grad for m in (inner, outer) for p in m.parameters()]]

    reports = same(program, memory="20KiB")
    assert not reports[0].unrolled and not reports[1].unrolled


def test_inside_a_budget(room):
    def program(scan):
        cell = nn.GRUCell(8, 64)
        _, y = scan(cell_step(cell), torch.zeros(16, 64), torch.randn(64, 16, 8))
        y.square().sum().backward()
        return [p.grad for p in cell.parameters()]

    with lowtide.budget(room + (4 << 20)):
        same(program, memory="256KiB")


def test_without_grad_mode():
    def program(scan):
        cell = nn.GRUCell(8, 8)
        with torch.no_grad():
            return scan(cell_step(cell), torch.zeros(4, 8), torch.randn(21, 4, 8))

    same(program, memory="20KiB")


def test_memory_does_not_grow_with_length():
    cell = nn.LSTMCell(4, 32)

    def step(state, x):
        state = cell(x, state)
        return state, state[0].square().mean()

    def peak(steps):
        x = torch.randn(steps, 8, 4)
        state = (torch.zeros(8, 32), torch.zeros(8, 32))
        gc.collect()
        meter = lowtide.meter()
        before = meter.live_bytes
        _, losses = lowtide.scan(step, state, x, memory="512KiB")
        losses.sum().backward()
        cell.zero_grad()
        return meter.peak_bytes - before - 2 * losses.nbytes

    peak(300)
    peaks = [peak(steps) for steps in (300, 1200, 4800)]
    # States, graph, and the sums of gradients on their way.
    assert max(peaks) < 512 * 1024, peaks


def refused(id, program, error=lowtide.UsageError):
    with pytest.raises(error) as caught:
        program()
    assert caught.value.id == id, caught.value
    return str(caught.value)


def scan_gru(step, steps=12, memory="20KiB"):
    return lowtide.scan(step, torch.zeros(4, 8), torch.randn(steps, 4, 8), memory=memory)


def test_too_little_memory_names_the_least():
    cell = nn.GRUCell(8, 8)
    with pytest.raises(lowtide.UsageError) as caught:
        scan_gru(cell_step(cell), memory=1000)
    assert caught.value.id == "LT0221"
    scan_gru(cell_step(cell), memory=caught.value.details["least_bytes"])[0].sum().backward()


def test_a_state_outside_of_the_state_is_refused():
    cell = nn.GRUCell(8, 8)
    holder = [torch.zeros(4, 8)]

    def step(h, x):
        holder[0] = cell(x, holder[0])
        return h, holder[0]

    message = refused("LT0223", lambda: scan_gru(step))
    assert "return it as part of the state" in message


def test_losses_kept_in_a_list_are_refused():
    cell = nn.GRUCell(8, 8)
    losses = []

    def step(h, x):
        h = cell(x, h)
        losses.append(h.sum())
        return h, h

    assert "as an output" in refused("LT0223", lambda: scan_gru(step))


def test_captured_buffers_that_change_are_refused():
    cell, norm = nn.GRUCell(8, 8), nn.BatchNorm1d(8)

    def step(h, x):
        h = norm(cell(x, h))
        return h, h

    assert "in place" in refused("LT0223", lambda: scan_gru(step))


def test_an_unlisted_generator_is_refused():
    own = torch.Generator()
    refused("LT0223", lambda: scan_gru(lambda h, x: (h + x + torch.rand(4, 8, generator=own), h)))


def test_weights_changed_before_backward_are_refused():
    cell = nn.GRUCell(8, 8)
    h, _ = scan_gru(cell_step(cell))
    with torch.no_grad():
        cell.weight_hh.add_(1)
    refused("LT0224", h.sum().backward, lowtide.DivergenceError)


def test_inputs_changed_before_backward_are_refused():
    cell = nn.GRUCell(8, 8)
    x = torch.randn(12, 4, 8)
    h, _ = lowtide.scan(cell_step(cell), torch.zeros(4, 8), x, memory="20KiB")
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


def test_a_step_that_goes_another_way_is_refused():
    cell = nn.GRUCell(8, 8)
    calls = [0]

    def step(h, x):
        calls[0] += 1
        h = cell(x, h) * (1 + calls[0])
        return h, h

    h, _ = scan_gru(step)
    refused("LT0224", h.sum().backward, lowtide.DivergenceError)


def test_a_captured_mask_that_changed_is_refused():
    cell = nn.GRUCell(8, 8)
    mask = torch.ones(4, 8)
    h, y = scan_gru(lambda h, x: (cell(x, h), (h * mask).sum()))
    mask.zero_()
    refused("LT0224", y.sum().backward, lowtide.DivergenceError)


def test_double_backward_is_refused():
    cell = nn.GRUCell(8, 8)
    x = torch.randn(12, 4, 8, requires_grad=True)
    h, _ = lowtide.scan(cell_step(cell), torch.zeros(4, 8), x, memory="20KiB")
    refused("LT0225", lambda: torch.autograd.grad(h.sum(), x, create_graph=True))


def test_a_second_backward_needs_retain_graph():
    cell = nn.GRUCell(8, 8)
    h, _ = scan_gru(cell_step(cell))
    h.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        h.sum().backward()


def test_results_that_do_not_fit_are_refused():
    refused("LT0222", lambda: scan_gru(lambda h, x: (h, x[: int(x.sum() * 0) + len(counts.append(0) or counts)])))
    refused("LT0222", lambda: scan_gru(lambda h, x: ((h, h), x)))
    refused("LT0222", lambda: scan_gru(lambda h, x: h))
    refused("LT0222", lambda: scan_gru(lambda h, x: (h, 1.0)))
    refused("LT0220", lambda: lowtide.scan(lambda h: (h, h), torch.zeros(3)))
    refused("LT0220", lambda: lowtide.scan(lambda h: (h, h), torch.zeros(3), length=0))
    refused("LT0220", lambda: lowtide.scan(lambda h, x: (h, h), torch.zeros(3), (torch.ones(3), torch.ones(4))))


counts = []


def test_what_a_step_raises_comes_through():
    class Own(Exception):
        pass

    cell = nn.GRUCell(8, 8)
    fail = [False]

    def step(h, x):
        if fail[0]:
            raise Own("here")
        h = cell(x, h)
        return h, h

    h, _ = scan_gru(step)
    fail[0] = True
    with pytest.raises(Own):
        scan_gru(step)
    with pytest.raises(Own):
        h.sum().backward()


def test_truncated_bptt_is_the_loop_with_detach():
    def train(window_of):
        torch.manual_seed(0)
        cell = nn.LSTMCell(5, 8)
        optimizer = torch.optim.SGD(cell.parameters(), 0.1)
        x = torch.randn(23, 4, 5)
        state = (torch.zeros(4, 8), torch.zeros(4, 8))
        for outputs, state in window_of(cell_step(cell), state, x):
            outputs.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [state, [p.detach().clone() for p in cell.parameters()]]

    def by_hand(step, state, x):
        for begin in range(0, len(x), 7):
            state = tuple(part.detach() for part in state)
            outputs = []
            for t in range(begin, min(begin + 7, len(x))):
                state, output = step(state, x[t])
                outputs.append(output)
            yield torch.stack(outputs), state

    assert equal(train(by_hand), train(lambda *args: lowtide.truncated_bptt(*args, window=7)))


def test_truncated_bptt_holds_one_window():
    cell = nn.GRUCell(4, 32)
    x = torch.randn(400, 8, 4)

    def peak(windows):
        gc.collect()
        meter = lowtide.meter()
        before = meter.live_bytes
        for outputs, _ in lowtide.truncated_bptt(cell_step(cell), torch.zeros(8, 32), x[: 20 * windows], window=20):
            outputs.sum().backward()
        return meter.peak_bytes - before

    peak(1)
    assert peak(20) < 1.3 * peak(2)


def test_truncated_bptt_refuses():
    step = cell_step(nn.GRUCell(4, 4))
    refused("LT0226", lambda: lowtide.truncated_bptt(step, torch.zeros(1, 4), torch.ones(3, 1, 4), window=0))
    refused("LT0220", lambda: lowtide.truncated_bptt(step, None, (torch.ones(3), torch.ones(4)), window=1))


def test_detach_state_cuts_nests():
    w = torch.ones(2, requires_grad=True)
    state = {"a": (w * 2, [w * 3]), "n": 5, "none": None}
    cut = lowtide.detach_state(state)
    assert not cut["a"][0].requires_grad and not cut["a"][1][0].requires_grad
    assert cut["a"][0].data_ptr() == state["a"][0].data_ptr()
    assert cut["n"] == 5 and cut["none"] is None
