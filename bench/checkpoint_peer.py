"""Cost per checkpointed region: Lowtide beside torch.utils.checkpoint, measured in turns in one run.

    python bench/checkpoint_peer.py build/release/bin/checkpoint_bench [rounds]

Prints for each block the CPU time of a step (forward and backward, one thread) plain, with the forward run
twice, and checkpointed, medians over the rounds; and the cost per region: checkpointed less twice, and
checkpointed less plain. Needs torch; the blocks are those of checkpoint_bench.cpp.
"""

import json
import statistics
import subprocess
import sys
import time

import torch
from torch.utils.checkpoint import checkpoint

SHAPES = [(8, 64), (256, 256)]
KINDS = ["plain", "twice", "checkpointed"]


def python_step(rows, width, kind, seconds=0.3):
    """Returns the CPU time of one step in microseconds."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def block(x):
        return second(torch.relu(first(x)))

    leaf = torch.randn(rows, width, requires_grad=True)
    seed = torch.ones(rows, width)

    def step():
        x = leaf * 1
        y = checkpoint(block, x, use_reentrant=False) if kind == "checkpointed" else block(x)
        if kind == "twice":
            block(x)
        y.backward(seed)

    for _ in range(50):
        step()
    steps, begin = 0, time.thread_time()
    while time.thread_time() - begin < seconds:
        for _ in range(20):
            step()
        steps += 20
    return (time.thread_time() - begin) / steps * 1e6


def lowtide_steps(program):
    """Returns {(rows, width, kind): microseconds}."""
    out = subprocess.run(
        [program, "--benchmark_format=json", "--benchmark_min_time=0.3"],
        check=True, capture_output=True, text=True).stdout
    times = {}
    for run in json.loads(out)["benchmarks"]:
        _, kind, rows, width = run["name"].split("/")
        times[int(rows), int(width), kind] = run["cpu_time"] / 1000
    return times


def main():
    program = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    torch.set_num_threads(1)
    samples = {}
    for _ in range(rounds):
        for key, value in lowtide_steps(program).items():
            samples.setdefault(("lowtide", *key), []).append(value)
        for rows, width in SHAPES:
            for kind in KINDS:
                key = ("python", rows, width, kind)
                samples.setdefault(key, []).append(python_step(rows, width, kind))

    print(f"torch {torch.__version__}, 1 thread, {rounds} rounds, medians; microseconds of CPU time")
    print(f"{'':24}{'plain':>9}{'twice':>9}{'checkpointed':>14}{'region':>9}{'over plain':>12}")
    for rows, width in SHAPES:
        region = {}
        for who in ["lowtide", "python"]:
            plain, twice, ours = (
                statistics.median(samples[who, rows, width, kind]) for kind in KINDS)
            region[who] = ours - plain
            print(f"{who + f' {rows}x{width}':24}{plain:9.1f}{twice:9.1f}{ours:14.1f}"
                  f"{ours - twice:9.1f}{ours - plain:12.1f}")
        if region["lowtide"] >= region["python"]:
            print(f"NOT cheaper than Python at {rows}x{width}")


if __name__ == "__main__":
    main()
