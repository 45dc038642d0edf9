"""A wide MLP whose parameters, gradients and optimizer state do not fit, beside the bandwidth of the disk.

    python bench/static_bench.py [--directory=DIR] [--width=2048] [--layers=12] [--batch=4096] [--steps=3] [--results=FILE]

AdamW, one thread, float32: the static bytes are four times the parameters' (gradients and two moments). The model is
trained plainly, and then in a budget of half the static bytes above what is live without them, with attach() and a
spill file in DIR. Both runs must give the same parameters, bit for bit. The disk's bandwidth is measured in the same
directory, before and after, with a file of 1 GiB that is written, synced, dropped from the page cache and read; what is
spilled may yet be in the page cache when it is read back. "disk_bound_s" is what the step's traffic would take at that
bandwidth with nothing computed. Times are medians over the steps after the first; wall time, because the step waits.
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time

import lowtide
import torch
from torch import nn

MIB = 1 << 20


def bandwidth(directory):
    """Bytes a second written and read."""
    piece, count = os.urandom(16 * MIB), 64
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        begin = time.perf_counter()
        for _ in range(count):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        written = time.perf_counter()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin_read = time.perf_counter()
        with open(file.name, "rb", buffering=0) as again:
            while again.read(16 * MIB):
                pass
        read = time.perf_counter()
    total = len(piece) * count
    return total / (written - begin), total / (read - begin_read)


def wide_mlp(width, layers):
    torch.manual_seed(1)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)])
    return net, torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=False)


def train(net, optimizer, x, steps):
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default=tempfile.gettempdir())
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--results", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(options.batch, options.width)
    meter = lowtide.meter()

    net, optimizer = wide_mlp(options.width, options.layers)
    parameters = sum(p.nbytes for p in net.parameters())
    meter.reset_peak()
    plain_s = train(net, optimizer, x, options.steps)
    plain_peak = meter.peak_bytes
    expected = [p.detach().clone().numpy().tobytes() for p in net.parameters()]
    del net, optimizer

    before = bandwidth(options.directory)
    net, optimizer = wide_mlp(options.width, options.layers)
    limit = meter.live_bytes - parameters + 2 * parameters
    with lowtide.budget(limit, spill=options.directory) as budget:
        budget.attach(optimizer)
        meter.reset_peak()
        attached_s = train(net, optimizer, x, options.steps)
        peak = meter.peak_bytes
    report = budget.report()
    after = bandwidth(options.directory)
    write, read = ((a + b) / 2 for a, b in zip(before, after, strict=True))
    spilled = report["spilled_bytes"] / options.steps
    result = {
        "command": f"static_bench.py --width={options.width} --layers={options.layers} --batch={options.batch}",
        "static_bytes": 4 * parameters,
        "limit_bytes": limit,
        "plain_peak_bytes": plain_peak,
        "peak_bytes": peak,
        "same_parameters": [p.detach().numpy().tobytes() for p in net.parameters()] == expected,
        "plain_s": plain_s,
        "attached_s": attached_s,
        "spilled_bytes_of_step": spilled,
        "spill_wait_s_of_step": report["spill_wait_s"] / options.steps,
        "disk_write_bytes_per_s": write,
        "disk_read_bytes_per_s": read,
        "disk_bound_s": spilled / write + spilled / read,
    }
    text = json.dumps(result, indent=2) + "\n"
    print(text, end="")
    if options.results:
        options.results.write_text(text)


if __name__ == "__main__":
    main()
