import gc
import itertools

import pytest
import torch
from both_ways import equal
from torch import nn
from torch.nn import functional as F

import lowtide

EPSILON = torch.finfo(torch.float32).eps


def plain(hidden, weight, target, bias=None, class_weights=None, z_loss=0.0, reduction="mean", ignore_index=-100,
          label_smoothing=0.0):
    """The pair that linear_cross_entropy stands for, in the inputs' dtype."""
    logits = F.linear(hidden, weight, bias)
    logits = logits.reshape(-1, logits.shape[-1])
    flat = target.reshape(-1, logits.shape[-1]) if target.is_floating_point() else target.reshape(-1)
    loss = F.cross_entropy(
        logits, flat, class_weights, reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing)
    z = z_loss * logits.logsumexp(1).square()
    if not target.is_floating_point():
        z = z.masked_fill(flat == ignore_index, 0)
        count = (flat != ignore_index).sum()
    else:
        count = len(flat)
    if reduction == "none":
        return (loss + z).reshape(hidden.shape[:-1])
    return loss + (z.sum() if reduction == "sum" else z.sum() / count)


def problem(tokens=(5, 9), width=24, classes=53, dtype=torch.float32, scale=1.0, probabilities=False, ignored=0):
    torch.manual_seed(0)
    made = {"hidden": torch.randn(*tokens, width), "weight": torch.randn(classes, width) * scale,
            "bias": torch.randn(classes), "class_weights": torch.rand(classes)}
    made = {name: tensor.to(dtype) for name, tensor in made.items()}
    if probabilities:
        made["target"] = torch.softmax(torch.randn(*tokens, classes), -1).to(dtype)
    else:
        made["target"] = torch.randint(0, classes, tokens)
        made["target"].view(-1)[torch.randperm(made["target"].numel())[:ignored]] = -100
    return made


def run(function, made, options, dtype=None, with_bias=True):
    leaves = {
        name: (tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor.clone()).detach()
        for name, tensor in made.items()}
    options = dict(options)
    if not with_bias:
        del leaves["bias"]
    if not options.pop("weighted", False):
        del leaves["class_weights"]
    wanted = [name for name in ("hidden", "weight", "bias") if name in leaves]
    for name in wanted:
        leaves[name].requires_grad_()
    loss = function(leaves["hidden"], leaves["weight"], leaves["target"],
                    **{name: leaves[name] for name in ("bias", "class_weights") if name in leaves}, **options)
    torch.manual_seed(1)
    factor = torch.rand(loss.shape, dtype=torch.float32).bfloat16()  # the same number in each dtype
    (loss * factor.to(loss.dtype)).sum().backward()
    return [loss.detach()] + [leaves[name].grad for name in wanted]


def check(made, options, with_bias=True, ours={}):
    """Ours is as near to float64 as the plain pair in float32 is, and within float32 rounding of it: of the result, and
    of the logits, whose last bit is a relative error of that size in every probability."""
    exact = run(plain, made, options, torch.float64, with_bias)
    single = run(plain, made, options, None, with_bias)
    found = run(lowtide.linear_cross_entropy, made, {**options, **ours}, None, with_bias)
    logits = F.linear(made["hidden"], made["weight"]).abs().max().item()
    for value, near, true in zip(found, single, exact):
        assert value.shape == true.shape and value.dtype == torch.float32
        error = (value.double() - true).abs().max().item()
        allowed = (2 * (near.double() - true).abs().max() + (8 + logits) * EPSILON * true.abs().max()).item()
        assert error <= allowed, (error, allowed)


WAYS = [{}, {"chunk": 53 * 4 * 7}, {"chunk": 53 * 4 * 16, "vocabulary_chunk": 17}, {"chunk": 64},
        {"gradients_in_forward": False}]


@pytest.mark.parametrize("ours", WAYS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
@pytest.mark.parametrize("weighted", [False, True])
def test_options_are_within_rounding_of_float64(ours, reduction, smoothing, z_loss, weighted):
    options = {"reduction": reduction, "label_smoothing": smoothing, "z_loss": z_loss, "weighted": weighted}
    for ignored, bias in itertools.product((0, 11), (True, False)):
        check(problem(ignored=ignored), options, bias, ours)
    check(problem(probabilities=True), options, True, ours)


@pytest.mark.parametrize("ours", WAYS)
def test_large_logits(ours):
    check(problem(scale=30.0, ignored=3), {"label_smoothing": 0.05, "z_loss": 1e-4}, True, ours)


def test_more_tokens_and_classes():
    check(problem(tokens=(700,), width=40, classes=2003, ignored=100), {"label_smoothing": 0.1}, ours={
        "chunk": 2003 * 4 * 64})


def test_other_ignore_index():
    made = problem()
    made["target"][0] = 7
    check(made, {"ignore_index": 7})


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nothing_counts(reduction):
    made = problem(ignored=45)
    found = run(lowtide.linear_cross_entropy, made, {"reduction": reduction})
    expected = run(plain, made, {"reduction": reduction})
    assert found[0].equal(expected[0]) or (found[0].isnan().all() and expected[0].isnan().all())
    assert all(grad.eq(0).all() for grad in found[1:])


def test_float64_is_float64():
    made = problem(ignored=5)
    options = {"label_smoothing": 0.1, "z_loss": 1e-3, "weighted": True}
    for a, b in zip(run(plain, made, options, torch.float64),
                    run(lowtide.linear_cross_entropy, made, options, torch.float64)):
        assert a.dtype == b.dtype and torch.allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("ours", WAYS[:3])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(half, ours):
    made = problem(tokens=(300,), width=64, classes=501, dtype=half, scale=0.3, ignored=20)
    options = {"label_smoothing": 0.1, "z_loss": 1e-3}
    if "chunk" in ours:
        ours = {**ours, "chunk": 501 * 4 * 40}
    exact = run(plain, made, options, torch.float64)
    rough = run(plain, made, options)
    found = run(lowtide.linear_cross_entropy, made, {**options, **ours})
    assert found[0].dtype == torch.float32 and all(grad.dtype == half for grad in found[1:])
    # The loss never saw a half: it is exact as float32's is.
    assert abs(found[0].item() - exact[0].item()) <= 16 * EPSILON * abs(exact[0].item())
    for value, near, true in zip(found[1:], rough[1:], exact[1:]):
        error = (value.double() - true).norm()
        assert error <= 1.1 * (near.double() - true).norm()
        assert error <= 1.5 * torch.finfo(half).eps * true.norm()


def test_dtypes_may_be_mixed():
    made = problem()
    made["hidden"] = made["hidden"].bfloat16()
    exact = run(plain, made, {}, torch.float64)
    found = run(lowtide.linear_cross_entropy, made, {})
    assert [grad.dtype for grad in found[1:]] == [torch.bfloat16, torch.float32, torch.float32]
    for value, true in zip(found[2:], exact[2:]):
        assert (value.double() - true).norm() <= 16 * EPSILON * true.norm()


def test_autocast_changes_nothing():
    made = problem()
    outside = run(lowtide.linear_cross_entropy, made, {})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run(lowtide.linear_cross_entropy, made, {})
        hidden = F.linear(made["hidden"], torch.randn(24, 24))
        assert hidden.dtype == torch.bfloat16
        lowtide.linear_cross_entropy(hidden.requires_grad_(), made["weight"], made["target"]).backward()
    assert equal(outside, inside)


def test_only_wanted_gradients_are_made():
    made = problem()
    for wanted in (["hidden"], ["weight"], ["bias"], ["hidden", "bias"], []):
        leaves = {name: made[name].clone().requires_grad_(name in wanted) for name in ("hidden", "weight", "bias")}
        for forward in (True, False):
            loss = lowtide.linear_cross_entropy(
                leaves["hidden"], leaves["weight"], made["target"], bias=leaves["bias"], gradients_in_forward=forward)
            assert loss.requires_grad == bool(wanted)
            if wanted:
                found = torch.autograd.grad(loss, [leaves[name] for name in wanted])
                logits = F.linear(leaves["hidden"], leaves["weight"], leaves["bias"])
                true = torch.autograd.grad(F.cross_entropy(logits.view(-1, 53), made["target"].view(-1)),
                                           [leaves[name] for name in wanted])
                assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, true))


def test_retained_graphs_accumulation_and_factors():
    made = problem()
    for forward in (True, False):
        hidden, weight = made["hidden"].clone().requires_grad_(), made["weight"].clone().requires_grad_()
        loss = lowtide.linear_cross_entropy(hidden, weight, made["target"], gradients_in_forward=forward)
        one, = torch.autograd.grad(loss, weight, retain_graph=True)
        kept = one.clone()
        loss.backward(retain_graph=True)
        weight.grad.mul_(5)  # must not reach what the graph keeps
        (3 * loss).backward()
        assert torch.allclose(weight.grad, 8 * kept, rtol=1e-5, atol=1e-7)
        assert one.equal(kept)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_weight_gradient_becomes_grad_without_a_copy():
    classes, width = 4000, 64
    weight = torch.randn(classes, width, requires_grad=True)
    hidden, target = torch.randn(256, width, requires_grad=True), torch.randint(0, classes, (256,))
    gc.collect()
    meter = lowtide.meter()
    before = meter.live_bytes
    lowtide.linear_cross_entropy(hidden, weight, target, chunk="256KiB").backward()
    extra = meter.peak_bytes - before - weight.nbytes - hidden.nbytes
    assert extra < 256 * 1024 + 128 * 1024, extra


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_never_there(forward, dtype):
    tokens, classes, width = 1024, 8000, 32
    weight = torch.randn(classes, width, dtype=dtype).requires_grad_()
    hidden, target = torch.randn(tokens, width, dtype=dtype).requires_grad_(), torch.randint(0, classes, (tokens,))
    logits = tokens * classes * 4
    gc.collect()
    meter = lowtide.meter()
    before = meter.live_bytes
    lowtide.linear_cross_entropy(
        hidden, weight, target, chunk="1MiB", label_smoothing=0.1, z_loss=1e-4, gradients_in_forward=forward).backward()
    extra = meter.peak_bytes - before
    # The chunk and small blocks beside it, and the gradients: of weight once more in float32 where it is narrow.
    sums = classes * width * (4 + (2 if dtype != torch.float32 else 0)) + 2 * hidden.nbytes
    assert extra < sums + (5 << 20), (extra, sums)
    assert extra < logits / 4


def test_inside_a_budget(room):
    tokens, classes, width = 512, 8000, 32
    head = nn.Linear(width, classes)
    body = nn.Linear(width, width)
    x, target = torch.randn(tokens, width), torch.randint(0, classes, (tokens,))

    def step(function):
        head.zero_grad(), body.zero_grad()
        h = body(x).tanh()
        function(h, head).backward()
        return [p.grad.clone() for p in (*head.parameters(), *body.parameters())]

    def ours(h, head):
        return lowtide.linear_cross_entropy(h, head.weight, target, bias=head.bias, chunk="1MiB")

    expected = step(ours)
    with lowtide.budget(room + (16 << 20)):
        assert equal(step(ours), expected)
    with lowtide.budget(room + (16 << 20)), pytest.raises(lowtide.BudgetError):
        step(lambda h, head: F.cross_entropy(head(h), target))


def refused(id, function):
    with pytest.raises(lowtide.UsageError) as caught:
        function()
    assert caught.value.id == id, caught.value


def test_what_cannot_be_right_is_refused():
    f = lowtide.linear_cross_entropy
    h, w, y = torch.randn(4, 8), torch.randn(10, 8), torch.randint(0, 10, (4,))
    refused("LT0430", lambda: f(h, torch.randn(10, 7), y))
    refused("LT0430", lambda: f(h, w, y[:3]))
    refused("LT0430", lambda: f(h, w, torch.rand(4, 9)))
    refused("LT0430", lambda: f(h, w, y, bias=torch.randn(9)))
    refused("LT0430", lambda: f(h, w, y, class_weights=torch.randn(10, 1)))
    refused("LT0431", lambda: f(h, w, y.int()))
    refused("LT0431", lambda: f(h.int(), w, y))
    refused("LT0431", lambda: f(h.to("meta"), w, y))
    refused("LT0431", lambda: f(h, w, torch.rand(4, 10, requires_grad=True)))
    refused("LT0431", lambda: f(h, w, y, class_weights=torch.ones(10, requires_grad=True)))
    refused("LT0432", lambda: f(h, w, y + 10))
    refused("LT0432", lambda: f(h, w, y - 20))
    refused("LT0433", lambda: f(h, w, y, label_smoothing=1.5))
    refused("LT0433", lambda: f(h, w, y, z_loss=-1))
    refused("LT0433", lambda: f(h, w, y, reduction="max"))
    refused("LT0433", lambda: f(h, w, y, chunk=0))
    refused("LT0433", lambda: f(h, w, torch.rand(4, 10), ignore_index=3))
    refused("LT0434", lambda: torch.autograd.grad(f(h, w.requires_grad_(), y), w, create_graph=True))
    refused("LT0435", lambda: torch.func.grad(lambda x: f(x, w, y))(h))
    refused("LT0435", lambda: torch.func.vmap(lambda x: f(x, w.detach(), y))(torch.randn(3, 4, 8)))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(h, h)
        refused("LT0435", lambda: f(dual, w, y))


class WideMlp(nn.Module):
    def __init__(self, width=32, hidden=512):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))


def test_checkpointed_mlp_is_the_mlp():
    mlp = WideMlp()
    x = torch.randn(3, 70, 32)

    def step(function):
        mlp.zero_grad()
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        y.square().sum().backward()
        return [y.detach(), leaf.grad, *[p.grad for p in mlp.parameters()]]

    expected = step(mlp)
    assert equal(step(lambda leaf: lowtide.checkpointed_mlp(mlp, leaf)),
                 step(lambda leaf: mlp(leaf.reshape(-1, 32)).reshape(leaf.shape)))
    for chunk in (1, 64, 100, 1000):
        for a, b in zip(expected, step(lambda leaf: lowtide.checkpointed_mlp(mlp, leaf, chunk_tokens=chunk))):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def test_checkpointed_mlp_holds_a_chunk():
    mlp = WideMlp(32, 2048)
    x = torch.randn(2048, 32, requires_grad=True)

    def peak(function):
        gc.collect()
        meter = lowtide.meter()
        before = meter.live_bytes
        function(x).sum().backward()
        mlp.zero_grad()
        x.grad = None
        return meter.peak_bytes - before

    peak(mlp)
    whole = peak(mlp)
    part = peak(lambda x: lowtide.checkpointed_mlp(mlp, x, chunk="1MiB"))
    assert whole > 2 * 2048 * 2048 * 4
    assert part < 5 * 2**20 + 6 * x.nbytes + 2 * sum(p.nbytes for p in mlp.parameters()), (part, whole)


def test_checkpointed_mlp_refuses():
    refused("LT0436", lambda: lowtide.checkpointed_mlp(lambda x: x, torch.ones(2, 2)))
    refused("LT0436", lambda: lowtide.checkpointed_mlp(WideMlp(), torch.ones(2, 32), chunk_tokens=0))
    refused("LT0436", lambda: lowtide.checkpointed_mlp(WideMlp(), torch.ones(0, 32), chunk_tokens=4))
    refused("LT0436", lambda: lowtide.checkpointed_mlp(lambda x: x.sum(0), torch.ones(4, 32), chunk_tokens=4))


def test_factorised_costs_are_what_the_layers_have():
    linear = nn.Linear(48, 96)
    low = lowtide.nn.FactorisedLinear(48, 96, 8)
    cost = low.cost()
    for one, layer in ((cost.full, linear), (cost.factorised, low)):
        assert one.parameters == sum(p.numel() for p in layer.parameters())
        optimizer = torch.optim.AdamW(layer.parameters())
        layer(torch.randn(2, 48)).sum().backward()
        optimizer.step()
        assert one.weights == sum(p.nbytes for p in layer.parameters())
        assert one.gradients == sum(p.grad.nbytes for p in layer.parameters())
        moments = [s for p in layer.parameters() for k, s in optimizer.state[p].items() if k != "step"]
        assert one.optimizer == sum(m.nbytes for m in moments)
        assert one.total == one.weights + one.gradients + one.optimizer
    assert cost.full.multiply_adds == 48 * 96 and cost.factorised.multiply_adds == 8 * (48 + 96)
    r = cost.largest_saving_rank
    assert r * (48 + 96) < 48 * 96 <= (r + 1) * (48 + 96)
    assert "saves" in str(cost)
    assert "saves nothing" in str(lowtide.compare_factorised(48, 96, 40))


def test_factors_are_the_best_of_their_rank():
    torch.manual_seed(0)
    weight = torch.randn(20, 30)
    _, s, _ = torch.linalg.svd(weight)
    for rank in (1, 7, 20):
        up, down, error = lowtide.factorise(weight, rank)
        assert up.shape == (20, rank) and down.shape == (rank, 30)
        assert abs((weight - up @ down).norm() / weight.norm() - error) < 1e-5
        assert abs(error - (s[rank:].norm() / s.norm()).item()) < 1e-6
    exact = lowtide.nn.FactorisedLinear.of(nn.Linear(30, 20), 20)
    assert exact.relative_error < 1e-6


def test_factorised_linear_of_a_layer_is_near_it():
    torch.manual_seed(0)
    linear = nn.Linear(30, 20)
    x = torch.randn(4, 5, 30)
    low = lowtide.nn.FactorisedLinear.of(linear, 20)
    assert torch.allclose(low(x), linear(x), atol=1e-5)
    assert low(x).shape == (4, 5, 20)
    fresh = lowtide.nn.FactorisedLinear(400, 300, 16)
    product = fresh.up @ fresh.down
    assert 0.8 < product.var() / nn.Linear(400, 300).weight.var() < 1.25


def test_factorised_refuses():
    refused("LT0437", lambda: lowtide.compare_factorised(4, 5, 6))
    refused("LT0437", lambda: lowtide.nn.FactorisedLinear(4, 5, 0))
    refused("LT0437", lambda: lowtide.factorise(torch.ones(4), 1))
    refused("LT0437", lambda: lowtide.factorised_linear(torch.ones(2, 3), torch.ones(4, 2), torch.ones(2, 5)))
