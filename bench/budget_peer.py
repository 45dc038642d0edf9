"""What a limit costs, beside what the public tools of Python take at the same peaks, in one run.

    python bench/budget_peer.py [--model=all|transformer|conv] [--quick] [--only=REGEX] [--repeats=5] [--compile]
                                [--results=FILE]

Plain, torch.utils.checkpoint (use_reentrant=False) around every block and around every second one, selective
checkpointing that saves matrix products (convolutions), without and with attention, fairscale's wrapper,
save_on_cpu, torch_remat around every block; then lowtide.budget with room to spare, and at the peak of each of those.
--only measures the peers whose rows it matches, and plain.
--compile adds torch.compile with activation_memory_budget 1, 0.5 and 0.2, related to the first of the three.

The models are those of budget_models.cpp; a step is forward, backward and an update with a learning rate of 0. Rows
take turns in each round; ratios are to the plain step of the same round, medians over the rounds; one thread,
processor time. Peaks are counted by lowtide.meter(), parameters and inputs left out of "added". Everything but
Lowtide's rows runs on libtorch's own allocator. The peers are installed from PyPI, without dependencies, into a
virtual environment in .cache, beside the packages of this one.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEERS = ROOT / ".cache/peers"


def enter_environment_of_peers():
    """Runs this program again with the peers importable."""
    if sys.prefix == str(PEERS):
        return
    python = PEERS / "bin/python"
    if not (PEERS / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        site = next(PEERS.glob("lib/python3*/site-packages"))
        (site / "beside.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")) + "\n")
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*install, "setuptools<81", "wheel"], check=True)
        subprocess.run(
            [*install, "--no-deps", "--no-build-isolation", "fairscale==0.4.13", "torch-remat"], check=True)
        (PEERS / "ready").touch()
    package = os.environ.get("PYTHONPATH", str(ROOT / "build/release/python"))
    os.execve(python, [str(python), *sys.argv], {**os.environ, "PYTHONPATH": package})


if __name__ == "__main__":
    enter_environment_of_peers()

import lowtide
import torch
from lowtide import _core
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

aten = torch.ops.aten
MATRIX_PRODUCTS = [aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default]
ATTENTION = [aten._scaled_dot_product_flash_attention_for_cpu.default]


class TransformerBlock(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.projection(y)
        return x + self.narrow(functional.gelu(self.widen(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, quick):
        super().__init__()
        count, width, batch, length = (4, 256, 4, 256) if quick else (12, 512, 8, 512)
        self.blocks = nn.ModuleList(TransformerBlock(width, 8, 4 * width) for _ in range(count))
        self.norm = nn.LayerNorm(width)
        self.input, self.target = torch.randn(batch, length, width), torch.randn(batch, length, width)

    def loss(self, run_blocks):
        return functional.mse_loss(self.norm(run_blocks(self.blocks, self.input)), self.target)


class ConvNorm(nn.Sequential):
    def __init__(self, in_width, out_width, size, stride):
        super().__init__(
            nn.Conv2d(in_width, out_width, size, stride, size // 2, bias=False), nn.BatchNorm2d(out_width))


class ResidualBlock(nn.Module):
    def __init__(self, in_width, out_width):
        super().__init__()
        stride = 1 if in_width == out_width else 2
        self.first, self.second = ConvNorm(in_width, out_width, 3, stride), ConvNorm(out_width, out_width, 3, 1)
        self.shortcut = None if stride == 1 else ConvNorm(in_width, out_width, 1, stride)

    def forward(self, x):
        y = self.second(self.first(x).relu_())
        return y.add_(x if self.shortcut is None else self.shortcut(x)).relu_()


class ConvNet(nn.Module):
    def __init__(self, quick):
        super().__init__()
        batch, size = (8, 64) if quick else (32, 128)
        widths = [64] + [width for width in ([64, 128] if quick else [64, 128, 256]) for _ in range(3)]
        self.stem, self.head = ConvNorm(3, 64, 7, 2), nn.Linear(widths[-1], 1000)
        self.blocks = nn.ModuleList(ResidualBlock(a, b) for a, b in zip(widths, widths[1:]))
        self.images, self.labels = torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))

    def loss(self, run_blocks):
        x = functional.max_pool2d(self.stem(self.images).relu_(), 3, 2, 1)
        x = run_blocks(self.blocks, x)
        return functional.cross_entropy(self.head(x.mean((2, 3))), self.labels)


def blocks_runner(every, context=None):
    """Runs blocks with every `every`-th one checkpointed, the first included; 0: none."""
    options = {"use_reentrant": False}
    if context is not None:
        options["context_fn"] = context

    def run(blocks, x):
        for i, block in enumerate(blocks):
            x = checkpoint(block, x, **options) if every and i % every == 0 else block(x)
        return x

    return run


def saving(ops):
    return functools.partial(create_selective_checkpoint_contexts, ops)


def run_with_fairscale(blocks, x):
    from fairscale.nn.checkpoint import checkpoint_wrapper

    if not hasattr(blocks, "wrapped_by_fairscale"):
        import copy

        wrapped = copy.deepcopy(blocks)
        for block, other in zip(blocks, wrapped):
            for name, parameter in block.named_parameters():
                owner, _, last = name.rpartition(".")
                setattr(other.get_submodule(owner), last, parameter)
            for name, buffer in block.named_buffers():
                owner, _, last = name.rpartition(".")
                other.get_submodule(owner).register_buffer(last, buffer)
        blocks.__dict__["wrapped_by_fairscale"] = [checkpoint_wrapper(block) for block in wrapped]
    for block in blocks.__dict__["wrapped_by_fairscale"]:
        x = block(x)
    return x


def run_on_cpu(blocks, x):
    with torch.autograd.graph.save_on_cpu():
        return blocks_runner(0)(blocks, x)


def run_with_torch_remat(blocks, x):
    import torch_remat

    for block in blocks:
        x = torch_remat.checkpoint()(block)(x)
    return x


ROWS = {
    "plain": blocks_runner(0),
    "checkpoint, every block": blocks_runner(1),
    "checkpoint, every second block": blocks_runner(2),
    "selective, saves matrix products": blocks_runner(1, saving(MATRIX_PRODUCTS)),
    "selective, saves matrix products and attention": blocks_runner(1, saving(MATRIX_PRODUCTS + ATTENTION)),
    "fairscale, every block": run_with_fairscale,
    "save_on_cpu": run_on_cpu,
    "torch_remat, every block": run_with_torch_remat,
}
COMPILED = {f"compiled, activation_memory_budget {budget}": budget for budget in (1.0, 0.5, 0.2)}


def restore(model):
    """Gradients dropped, running statistics as in a new model."""
    model.zero_grad(set_to_none=True)
    restore_statistics(model)


def restore_statistics(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()


def step(model, run_blocks):
    model.zero_grad(set_to_none=True)
    model.loss(run_blocks).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.grad, alpha=0)


def checksum(tensors):
    """Of the tensors' bytes; copies would count in the peaks of other rows."""
    total = 0
    for tensor in tensors:
        total = zlib.crc32(tensor.contiguous().numpy(), total)
    return total


def measure(model, run_blocks, warm, meter, limit=None):
    _core.set_block_reuse(limit is not None)
    restore(model)
    before = meter.live_bytes
    with lowtide.budget(limit) if limit is not None else contextlib.nullcontext():
        for _ in range(warm if limit is None else warm + 1):
            step(model, run_blocks)
        restore_statistics(model)
        meter.reset_peak()
        wall, processor = time.perf_counter(), time.process_time()
        step(model, run_blocks)
        run = {"processor_s": time.process_time() - processor, "wall_s": time.perf_counter() - wall,
               "peak_bytes": meter.peak_bytes, "added_bytes": meter.peak_bytes - before}
    run["gradients"] = checksum(parameter.grad for parameter in model.parameters())
    run["running_statistics"] = checksum(model.buffers())
    restore(model)
    return run


def compiled_runner(model, budget):
    torch._dynamo.reset()
    torch._functorch.config.activation_memory_budget = budget
    compiled = torch.compile(lambda x: blocks_runner(0)(model.blocks, x))
    return lambda blocks, x: compiled(x)


def print_turn(row, run):
    print(f"  {row:64}{run['processor_s']:8.3f} s  peak {run['peak_bytes'] / 2**20:8.1f} MiB", file=sys.stderr)


def measure_model(name, model, options):
    meter = lowtide.meter()
    runs, problems = {}, {}

    def turn(row, run_blocks, limit=None):
        if row in problems:
            return
        try:
            run = measure(model, run_blocks, options.warm, meter, limit)
        except Exception as error:  # a peer that does not run here, or a limit that is refused
            problems[row] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            print(f"  {row}: {problems[row]}", file=sys.stderr)
            restore(model)
            return
        runs.setdefault(row, []).append(run)
        print_turn(row, run)

    peers = {row: run for row, run in ROWS.items() if row == "plain" or re.search(options.only, row)}
    for _ in range(options.repeats):
        for row, run_blocks in peers.items():
            turn(row, run_blocks)
        turn("lowtide, room to spare", ROWS["plain"], 2 * runs["plain"][0]["peak_bytes"])
        for row in list(peers)[1:]:
            if row in runs and runs[row][0]["peak_bytes"] < runs["plain"][0]["peak_bytes"]:
                turn(f"lowtide, at the peak of: {row}", ROWS["plain"], runs[row][0]["peak_bytes"])
    if options.compile:
        for row, budget in COMPILED.items():
            run_blocks = compiled_runner(model, budget)
            for _ in range(options.repeats):
                turn(row, run_blocks)
    plain_peak = max(run["peak_bytes"] for run in runs["plain"])
    plain_added = max(run["added_bytes"] for run in runs["plain"])
    rows = [{"row": row, "problem": problem} for row, problem in problems.items()]
    for row, taken in runs.items():
        beside = runs["compiled, activation_memory_budget 1.0"] if row in COMPILED else runs["plain"]
        rounds = [a["processor_s"] / b["processor_s"] for a, b in zip(taken, beside)]
        peak = max(run["peak_bytes"] for run in taken)
        rows.append({
            "row": row,
            "processor_time_of_plain": statistics.median(rounds),
            "wall_time_of_plain": statistics.median(a["wall_s"] / b["wall_s"] for a, b in zip(taken, beside)),
            "processor_s": statistics.median(run["processor_s"] for run in taken),
            "peak_bytes": peak,
            "peak_of_plain": peak / plain_peak,
            "added_of_plain": max(run["added_bytes"] for run in taken) / plain_added,
            "same_gradients": all(run["gradients"] == runs["plain"][0]["gradients"] for run in taken),
            "same_running_statistics": all(
                run["running_statistics"] == runs["plain"][0]["running_statistics"] for run in taken),
            "processor_time_of_plain_in_rounds": rounds,
        })
    return {"model": name, "plain_peak_bytes": plain_peak, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["all", "transformer", "conv"], default="all")
    parser.add_argument("--quick", action="store_true", help="small models, to try this out")
    parser.add_argument("--only", default="", help="a regular expression")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="also torch.compile; minutes")
    parser.add_argument("--results", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    models = []
    for name, make in [("transformer", Transformer), ("conv", ConvNet)]:
        if options.model not in ("all", name):
            continue
        print(name, file=sys.stderr)
        torch.manual_seed(1)
        models.append(measure_model(name, make(options.quick), options))
    report = {"command": "budget_peer.py " + " ".join(a for a in sys.argv[1:] if not a.startswith("--results")),
              "torch": torch.__version__, "models": models}
    text = json.dumps(report, indent=2) + "\n"
    print(text, end="")
    if options.results:
        options.results.write_text(text)


if __name__ == "__main__":
    main()
