import copy
import importlib
import os
import pathlib
import pickle
import subprocess
import sys
import types

import pytest
import torch
from both_ways import equal

import lowtide
from lowtide import compat


@pytest.fixture
def fairscale():
    assert compat.fairscale.install()
    yield importlib.import_module("fairscale.nn.checkpoint")
    compat.fairscale.uninstall()


def test_fairscales_name(fairscale):
    from fairscale.nn.checkpoint import checkpoint_wrapper

    assert checkpoint_wrapper is lowtide.checkpoint_wrapper
    assert compat.fairscale.is_installed()
    compat.fairscale.uninstall()
    assert "fairscale" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fairscale")


def test_fairscale_itself_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "fairscale").mkdir()
    (tmp_path / "fairscale/__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not compat.fairscale.install()
    assert importlib.import_module("fairscale").real
    del sys.modules["fairscale"]


class Layer(torch.nn.Module):
    """As mmdetection's encoder layers are called: by keyword."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(32, 32), torch.nn.LayerNorm(32)

    def forward(self, query, query_pos=None, **kwargs):
        return self.norm(query + torch.tanh(self.linear(query + query_pos)))


def test_what_was_broken_there_works(fairscale):
    layer = fairscale.checkpoint_wrapper(Layer())
    query, pos = torch.randn(4, 32, requires_grad=True), torch.randn(4, 32)
    plain = Layer()
    plain.load_state_dict(layer.state_dict())

    def gradients(layer):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = layer(query=query, query_pos=pos, spatial_shapes=None)
        return list(torch.autograd.grad(out.float().square().sum(), [query, *layer.parameters()]))

    assert equal(gradients(plain), gradients(layer))
    assert equal(gradients(plain), gradients(copy.deepcopy(layer)))
    assert equal(gradients(plain), gradients(pickle.loads(pickle.dumps(layer))))


DDP = """
import os, sys, torch, torch.distributed as dist, lowtide
sys.path.insert(0, {here!r})
from compat_test import Layer
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.set_num_threads(1)
def run(wrap):
    torch.manual_seed(0)
    model = torch.nn.ModuleList([wrap(Layer()) for _ in range(4)])
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model
            self.unused = torch.nn.Linear(3, 3)
        def forward(self, x):
            for layer in self.inner:
                x = layer(query=x, query_pos=x * 0.5)
            return x
    net = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
    calls = []
    net.register_comm_hook(None, lambda state, bucket: (calls.append(bucket.index()), dist.all_reduce(
        bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0].div_(2)))[1])
    torch.manual_seed(rank)
    for _ in range(2):
        net.zero_grad()
        net(torch.randn(8, 32)).square().sum().backward()
    return [p.grad for p in net.parameters()], calls
plain, calls = run(lambda m: m)
wrapped, calls_wrapped = run(lowtide.checkpoint_wrapper)
with lowtide.budget(lowtide.meter().live_bytes + (1 << 20)) as budget:
    inside, calls_inside = run(lambda m: m)
same = lambda a, b: all((x is None and y is None) or x.equal(y) for x, y in zip(a, b))
assert same(plain, wrapped), "wrapped"
assert same(plain, inside), "budget"
assert calls == calls_wrapped == calls_inside, (calls, calls_wrapped, calls_inside)
dist.destroy_process_group()
print("done", rank, len(calls))
"""


def two_processes(code):
    port = str(20000 + os.getpid() % 20000)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        for rank in range(2)]
    for rank, process in enumerate(processes):
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        assert out.startswith(f"done {rank}"), err


def test_ddp_with_unused_parameters_on_two_processes():
    two_processes(DDP.format(here=str(pathlib.Path(__file__).parent)))


FSDP = """
import os, sys, torch, torch.distributed as dist, lowtide
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (2,))
def run(limit=None, wrap=lambda m: m):
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.LayerNorm(128)) for _ in range(4)]
    model = torch.nn.Sequential(*[wrap(layer) for layer in layers])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(rank)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(256, 128)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.to_local().detach().clone() for p in model.parameters()]
run()
meter = lowtide.meter()
before = meter.live_bytes
plain = run()
peak = meter.peak_bytes - before
with lowtide.budget(lowtide.meter().live_bytes + int(peak * 0.85)) as budget:
    inside = run()
assert plain[0] == inside[0], (plain[0], inside[0])
assert all(a.equal(b) for a, b in zip(plain[1], inside[1]))
assert budget.report()["drops"] > 0, budget.report()
wrapped = run(wrap=lowtide.checkpoint_wrapper)
assert plain[0] == wrapped[0]
dist.destroy_process_group()
print("done", rank)
"""


def test_fsdp_on_two_processes():
    two_processes(FSDP)


def test_mmcvs_deformable_attention(monkeypatch):
    """The function of mmcv that its module calls on the CPU, as mmcv 2 has it."""
    module = types.ModuleType("mmcv.ops.multi_scale_deform_attn")

    def multi_scale_deformable_attn_pytorch(value, value_spatial_shapes, sampling_locations, attention_weights):
        raise AssertionError("the slow way")

    module.multi_scale_deformable_attn_pytorch = multi_scale_deformable_attn_pytorch
    monkeypatch.setitem(sys.modules, "mmcv.ops.multi_scale_deform_attn", module)
    compat.enable_cpu_ms_deform_attn()
    compat.enable_cpu_ms_deform_attn()
    shapes = torch.tensor([[4, 5], [2, 3]])
    value = torch.randn(2, 26, 4, 8)
    locations, weights = torch.rand(2, 7, 4, 2, 3, 2), torch.rand(2, 7, 4, 2, 3)
    out = module.multi_scale_deformable_attn_pytorch(value, shapes, locations, weights)
    assert out.equal(lowtide.ops.ms_deform_attn(value, shapes, torch.tensor([0, 20]), locations, weights))


@pytest.mark.parametrize("early", [False, True])
def test_transformers_deformable_attention(early):
    code = f"""
import torch, lowtide, importlib
early = {early}
if early:
    lowtide.compat.enable_cpu_ms_deform_attn()
module = importlib.import_module("transformers.models.deformable_detr.modeling_deformable_detr")
original = module.MultiScaleDeformableAttention.forward
shapes = [(4, 5), (2, 3)]
args = (torch.randn(2, 26, 4, 8), torch.tensor(shapes), shapes, torch.tensor([0, 20]),
        torch.rand(2, 7, 4, 2, 3, 2), torch.rand(2, 7, 4, 2, 3), 64)
slow = getattr(original, "__wrapped__", original)(module.MultiScaleDeformableAttention(), *args)
lowtide.compat.enable_cpu_ms_deform_attn()
assert module.MultiScaleDeformableAttention.forward.__lowtide__
fast = module.MultiScaleDeformableAttention()(*args)
torch.testing.assert_close(slow, fast)
print("done")
"""
    pytest.importorskip("transformers")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr
