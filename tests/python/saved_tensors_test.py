"""Which tensor a saved tensor is: functions of Python's see the very ones that they saved, as without a budget."""

import gc
import threading
import weakref

import pytest
import torch
from both_ways import check_same_dropped
from torch import nn
from torch.autograd import Function
from torch.nn import functional as F

import lowtide


class Dot(Function):
    """Its gradient is a tensor that it saved."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x)
        return (x * w).sum()

    @staticmethod
    def backward(ctx, g):
        return None, ctx.saved_tensors[0]


class HalfSquare(Function):
    @staticmethod
    def forward(w):
        return (w * w).sum() / 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        assert ctx.needs_input_grad == (True,)
        return ctx.saved_tensors


class Precomputed(Function):
    """Gradients computed in the forward, as fused losses do."""

    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            xd, wd = x.detach().requires_grad_(), w.detach().requires_grad_()
            loss = F.gelu(xd @ wd).square().mean()
            ctx.save_for_backward(*torch.autograd.grad(loss, [xd, wd]))
        return loss.detach()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors


def parameter():
    return nn.Parameter(torch.randn(64, 64) * 0.2)


def test_gradient_that_is_a_batch():
    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        out = []
        for _ in range(3):
            loss = Dot.apply(x, w)
            drop_all()
            loss.backward()
            out += [loss.item(), w.grad.clone()]
            w.grad.zero_()
            out.append(x.clone())
        return out

    check_same_dropped(body)


def test_gradient_that_is_a_parameter():
    def body(drop_all):
        w = parameter()
        out = []
        for _ in range(3):
            loss = HalfSquare.apply(w)
            drop_all()
            loss.backward()
            out += [loss.item(), w.grad.clone()]
            w.grad.mul_(0.1)
            out.append(w.detach().clone())
        return out

    check_same_dropped(body)


def test_gradient_that_is_an_activation():
    def body(drop_all):
        w, v = parameter(), parameter()
        out = []
        for keeps in (True, False):
            h = torch.exp(v)
            loss = Dot.apply(h, w)
            probe = (h * h).sum()
            if not keeps:
                del h
            for _ in range(3):
                drop_all()
                loss.backward(retain_graph=True)
                out.append(w.grad.clone())
                w.grad.zero_()
                w.grad = None
            drop_all()
            probe.backward()
            out += [v.grad.clone(), loss.grad_fn.saved_tensors[0].detach().clone()]
            v.grad = None
        return out

    check_same_dropped(body)


def test_gradients_computed_in_the_forward_of_a_retained_graph():
    def body(drop_all):
        x, w, v = torch.randn(64, 64), parameter(), parameter()
        out = []
        for _ in range(3):
            loss = Precomputed.apply(x @ v, w)
            for keep in (True, True, False):
                drop_all()
                loss.backward(retain_graph=keep)
                out.append(w.grad.clone())
                w.grad.data.zero_()
                w.grad = None
            out.append(v.grad.clone())
            v.grad = None
        return out

    check_same_dropped(body)


class Keeper(Function):
    """Writes gradients itself, and asks its saved tensors what they are."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad = x.detach().as_subclass(torch.Tensor).t() @ g
        w.grad = grad if w.grad is None else w.grad + grad
        w.main_grad.add_(grad)
        factor = 2.0 if isinstance(w, nn.Parameter) else 1.0
        factor *= getattr(x, "scale", 1.0) * (5.0 if type(x) is Scaled else 1.0)
        return g @ w.t() * factor, None


class Scaled(torch.Tensor):
    pass


@pytest.mark.parametrize("kind", ["plain", "attribute", "subclass"])
def test_functions_that_look_at_their_tensors(kind):
    def body(drop_all):
        x, w, v = torch.randn(64, 64), parameter(), parameter()
        w.main_grad = torch.zeros(64, 64)
        for _ in range(3):
            h = torch.tanh(x @ v)
            if kind == "attribute":
                h.scale = 3.0
            elif kind == "subclass":
                h = h.as_subclass(Scaled)
            loss = Keeper.apply(h, w).as_subclass(torch.Tensor).square().mean()
            del h
            drop_all()
            loss.backward()
        return [w.grad, w.main_grad, v.grad]

    check_same_dropped(body)


def test_the_same_tensors_each_time():
    w, v = parameter(), parameter()
    with lowtide.budget("1GiB"):
        h = torch.exp(v)
        loss = Keeper.apply(h, w).sum()
        node = next(n for n, _ in loss.grad_fn.next_functions)
        assert node.saved_tensors[0] is h and node.saved_tensors[1] is w
        again = weakref.ref(h)
        del h
        with pytest.raises(lowtide.BudgetError):
            torch.empty(1 << 30, dtype=torch.uint8)
        first = node.saved_tensors
        assert again() is None and first[0] is node.saved_tensors[0]
        assert first[0].grad_fn is not None and first[0].equal(torch.exp(v))
        del first, node, loss
        gc.collect()


def test_results_that_a_function_saved_leave_no_cycle():
    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y

    def body(drop_all):
        w = parameter()
        gc.collect()
        gc.disable()
        try:
            before = lowtide.meter().live_bytes
            for _ in range(3):
                y = Exp.apply(w * 2)
                loss = (y * y).sum()
                del y
                drop_all()
                (g,) = torch.autograd.grad(loss, w, create_graph=True)
                (gg,) = torch.autograd.grad(g.sum(), w)
                del loss, g
            kept = lowtide.meter().live_bytes - before
        finally:
            gc.enable()
        assert kept <= gg.nbytes + 64
        return [gg]

    check_same_dropped(body)


def test_users_own_hooks_go_first():
    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        packed = []

        def pack(tensor):
            packed.append(tuple(tensor.shape))
            return tensor.half()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.float()):
            a = torch.tanh(x @ w)
            loss = (a.exp() * a).sum()
        del a
        drop_all()
        loss.backward()
        return [loss.item(), packed, w.grad]

    check_same_dropped(body)


def test_users_own_hooks_in_a_checkpointed_region():
    def region(h):
        h = torch.sin(h)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 2):
            h = h * torch.tanh(h)
        return torch.exp(h)

    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        out = []
        for run in (lambda h: region(h), lambda h: lowtide.checkpoint(region, h)):
            loss = run(x @ w).sum()
            drop_all()
            loss.backward()
            out.append(w.grad)
            w.grad = None
        assert out[0].equal(out[1])
        return out

    check_same_dropped(body)


def test_functions_in_a_checkpointed_region():
    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        out = []
        for run in (lambda f, h: f(h), lowtide.checkpoint):
            loss = run(lambda h: HalfSquare.apply(w) + Dot.apply(torch.tanh(h), w), x @ w)
            drop_all()
            loss.backward()
            out.append(w.grad.clone())
            w.grad.zero_()
            w.grad = None
        assert out[0].equal(out[1])
        return out + [w]

    check_same_dropped(body)


def test_mutation_of_saved_tensors():
    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            a = x @ w
            b = a * a
            a.mul_(2)
            loss = (b * 3).sum() + a.sum()
            drop_all()
            loss.backward()
        return [loss.item(), w.grad]

    check_same_dropped(body)


def dropout_of(w, x):
    y = F.dropout(torch.tanh(x @ w), 0.3).square() * torch.rand(64, 64)
    return (y * y.sin()).exp()


def test_vmap_over_backward():
    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        y = dropout_of(w, x)
        drop_all()
        v = torch.randn(3, 64, 64)
        out = [torch.autograd.grad(y, w, v, is_grads_batched=True, retain_graph=True)[0]]
        for randomness in ("error", "same", "different"):
            drop_all()
            out.append(
                torch.func.vmap(
                    lambda u: torch.autograd.grad(y, w, u, retain_graph=True)[0], randomness=randomness)(v))
        drop_all()
        return out

    assert check_same_dropped(body)["recomputed_ops"] > 0


def test_backward_of_an_outer_graph_inside_func_grad():
    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        y = dropout_of(w, x)
        drop_all()

        def inner(q):
            (g,) = torch.autograd.grad(y, w, torch.ones_like(y), retain_graph=True)
            return (q * g).sum()

        return [torch.func.grad(inner)(torch.randn(64, 64))]

    assert check_same_dropped(body)["recomputed_ops"] > 0


def test_modes_around_backward_do_not_see_replays():
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    class Twice(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            result = f(*args, **(kwargs or {}))
            return result * 2 if "mul.Tensor" in str(f) else result

    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        out = []
        for mode in (Twice(), FlopCounterMode(display=False), torch.device("meta")):
            h = torch.tanh(torch.tanh(x @ w) @ w * x) @ w
            loss = (h * h).sum()
            del h
            drop_all()
            with mode:
                loss.backward()
            out.append(w.grad.clone())
            if hasattr(mode, "get_total_flops"):
                out.append(mode.get_total_flops())
        return out

    assert check_same_dropped(body)["recomputed_ops"] > 0


def test_fake_tensors_around_backward():
    from torch._subclasses import FakeTensorMode

    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        h = torch.tanh(x @ w).exp()
        loss = (h * h).sum()
        del h
        drop_all()
        with FakeTensorMode(allow_non_fake_inputs=True):
            (g,) = torch.autograd.grad(loss, w, retain_graph=True)
        out = [type(g).__name__, tuple(g.shape)]
        del g
        drop_all()
        return out + [torch.autograd.grad(loss, w)[0]]

    assert check_same_dropped(body)["recomputed_ops"] > 0


def test_batches_drawn_by_another_thread_during_backward():
    def body(drop_all):
        own = torch.Generator().manual_seed(3)
        weights = [parameter() for _ in range(4)]
        batch = torch.randn(1024, 64)
        out = []
        for _ in range(3):
            h = batch
            for w in weights:
                h = F.dropout(torch.tanh(h @ w), 0.3) * torch.empty(1024, 64).bernoulli_(0.7, generator=own)
            loss = h.square().mean()
            del h
            drop_all()
            drawn = []
            thread = threading.Thread(
                target=lambda: drawn.extend(torch.randn(64, 64) + torch.rand(64, 64, generator=own) for _ in range(16)))
            thread.start()
            loss.backward()
            thread.join()
            batch = torch.cat(drawn)
            out += [loss.item(), batch, own.get_state()]
        return out + [w.grad for w in weights]

    check_same_dropped(body)


def test_precisions_set_by_backend():
    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        out = []
        for _ in range(3):
            a = torch.tanh(x @ w).exp()
            drop_all()
            before = torch.backends.cuda.matmul.fp32_precision
            torch.backends.cuda.matmul.fp32_precision = "tf32"
            try:
                b = a.sin()
                b.data.mul_(2)
                x.data.mul_(1.01)
                loss = (b * b).sum()
                del a, b
                drop_all()
                loss.backward()
            finally:
                torch.backends.cuda.matmul.fp32_precision = before
            out.append(w.grad.clone())
        return out

    assert check_same_dropped(body)["drops"] > 0


def test_activation_that_is_shared_with_another_process():
    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        out = []
        for _ in range(3):
            h = torch.exp(x @ w * 0.1)
            k = torch.sin(h)
            loss = (k * k + h * h).sum()
            h.detach().share_memory_()
            del h, k
            drop_all()
            loss.backward()
            out.append(w.grad.clone())
        return out

    check_same_dropped(body)


@pytest.mark.slow
def test_functions_inside_compiled_code():
    torch._dynamo.reset()

    def body(drop_all):
        x, w = torch.randn(64, 64), parameter()
        compiled = torch.compile(lambda h: Precomputed.apply(torch.tanh(h @ w), w), backend="eager")
        out = []
        for _ in range(2):
            loss = compiled(x)
            drop_all()
            loss.backward()
            out.append(w.grad.clone())
            w.grad.zero_()
        return out

    check_same_dropped(body)


def test_functions_under_func_transforms():
    class Cube(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x**2

    def body(drop_all):
        x, w = torch.randn(8, 64), parameter()
        out = [torch.func.vmap(torch.func.grad(lambda t: Cube.apply(t @ w).sum()))(x)]
        loss = torch.func.vmap(lambda t: Cube.apply(t @ w))(x).sum()
        drop_all()
        loss.backward()
        return out + [w.grad]

    check_same_dropped(body)
