"""What the public tools of Python take on the models of budget_bench: time and counted peak.

    python bench/budget_peer.py [--model=all|transformer|conv] [--quick] [--repeats=5] [--results=FILE]

Plain, torch.utils.checkpoint (use_reentrant=False) around every block and around every second one, and selective
checkpointing that saves matrix products (convolutions), without and with attention. The models are those of
budget_models.cpp; a step is forward, backward and an update with a learning rate of 0. Rows take turns in each
round; ratios are to the plain step of the same round, medians over the rounds; one thread.

Peaks are counted by Lowtide's own allocator, exactly as budget_bench counts them: liblowtide is loaded into this
process, and its MemoryMeter is called by its mangled name. Needs build/release/lib/liblowtide.so.
"""

import argparse
import ctypes
import functools
import json
import pathlib
import statistics
import sys
import time
import zlib

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

LIBRARY = pathlib.Path(__file__).resolve().parents[1] / "build/release/lib/liblowtide.so"
aten = torch.ops.aten
MATRIX_PRODUCTS = [aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default]
ATTENTION = [aten._scaled_dot_product_flash_attention_for_cpu.default]


class Meter:
    """lowtide::MemoryMeter, whose one member is a pointer."""

    library = None

    def __init__(self):
        if Meter.library is None:
            Meter.library = ctypes.CDLL(str(LIBRARY))
            Meter.library._ZNK7lowtide11MemoryMeter10peak_bytesEv.restype = ctypes.c_uint64
            Meter.library._ZNK7lowtide11MemoryMeter10live_bytesEv.restype = ctypes.c_uint64
        self.place = ctypes.c_void_p()
        Meter.library._ZN7lowtide11MemoryMeterC1Ev(ctypes.byref(self.place))

    def reset(self):
        Meter.library._ZN7lowtide11MemoryMeter10reset_peakEv(ctypes.byref(self.place))

    def live(self):
        return Meter.library._ZNK7lowtide11MemoryMeter10live_bytesEv(ctypes.byref(self.place))

    def peak(self):
        return Meter.library._ZNK7lowtide11MemoryMeter10peak_bytesEv(ctypes.byref(self.place))


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


ROWS = {
    "plain": blocks_runner(0),
    "checkpoint, every block": blocks_runner(1),
    "checkpoint, every second block": blocks_runner(2),
    "selective, saves matrix products": blocks_runner(1, saving(MATRIX_PRODUCTS)),
    "selective, saves matrix products and attention": blocks_runner(1, saving(MATRIX_PRODUCTS + ATTENTION)),
}


def restore(model):
    """Gradients dropped, running statistics as in a new model."""
    model.zero_grad(set_to_none=True)
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


def measure(model, run_blocks, warm, meter):
    restore(model)
    before = meter.live()
    for _ in range(warm):
        step(model, run_blocks)
    meter.reset()
    wall, processor = time.perf_counter(), time.process_time()
    step(model, run_blocks)
    run = {"processor_s": time.process_time() - processor, "wall_s": time.perf_counter() - wall,
           "peak_bytes": meter.peak(), "added_bytes": meter.peak() - before}
    run["gradients"] = checksum(parameter.grad for parameter in model.parameters())
    run["running_statistics"] = checksum(model.buffers())
    restore(model)
    return run


def measure_model(name, model, repeats, warm):
    meter = Meter()
    runs = {row: [] for row in ROWS}
    for _ in range(repeats):
        for row, run_blocks in ROWS.items():
            run = measure(model, run_blocks, warm, meter)
            runs[row].append(run)
            print(f"  {row:48}{run['processor_s']:8.3f} s  peak {run['peak_bytes'] / 2**20:8.1f} MiB", file=sys.stderr)
    plain_peak = max(run["peak_bytes"] for run in runs["plain"])
    plain_added = max(run["added_bytes"] for run in runs["plain"])
    rows = []
    for row, taken in runs.items():
        rounds = [a["processor_s"] / b["processor_s"] for a, b in zip(taken, runs["plain"])]
        peak = max(run["peak_bytes"] for run in taken)
        rows.append({
            "row": row,
            "processor_time_of_plain": statistics.median(rounds),
            "wall_time_of_plain": statistics.median(
                a["wall_s"] / b["wall_s"] for a, b in zip(taken, runs["plain"])),
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
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--results", type=pathlib.Path)
    options = parser.parse_args()
    Meter()  # before the first tensor, so that all are counted
    torch.set_num_threads(1)
    models = []
    for name, make in [("transformer", Transformer), ("conv", ConvNet)]:
        if options.model not in ("all", name):
            continue
        print(name, file=sys.stderr)
        torch.manual_seed(1)
        models.append(measure_model(name, make(options.quick), options.repeats, options.warm))
    report = {"command": "budget_peer.py " + " ".join(a for a in sys.argv[1:] if not a.startswith("--results")),
              "torch": torch.__version__, "models": models}
    text = json.dumps(report, indent=2) + "\n"
    print(text, end="")
    if options.results:
        options.results.write_text(text)


if __name__ == "__main__":
    main()
