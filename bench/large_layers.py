#!/usr/bin/env python3
"""linear_cross_entropy beside F.linear and F.cross_entropy: peak bytes and time of forward and backward, in one run.

    PYTHONPATH=build/release/python python bench/large_layers.py > bench/results/large_layers.txt

4,096 tokens; one thread; the two take turns, medians of CPU time (user and system) over `--rounds` rounds after one to
warm up. Peaks are tensor bytes above inputs and parameters, so the gradients of hidden and weight are in them.
"""

import argparse
import gc
import statistics
import time

import torch
from torch.nn import functional as F

import lowtide

TOKENS = 4096


def plain(hidden, weight, target, options):
    return F.cross_entropy(F.linear(hidden, weight), target, **options)


def ours(hidden, weight, target, options):
    return lowtide.linear_cross_entropy(hidden, weight, target, **options)


def again(hidden, weight, target, options):
    return lowtide.linear_cross_entropy(hidden, weight, target, gradients_in_forward=False, **options)


def step(function, hidden, weight, target, options):
    hidden.grad = weight.grad = None
    gc.collect()
    meter = lowtide.meter()
    before = meter.live_bytes
    begin = time.process_time()
    function(hidden, weight, target, options).backward()
    return time.process_time() - begin, meter.peak_bytes - before


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabularies", default="32000,64000,150000")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--ways", default="plain,ours,again")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    processor = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    print(f"{processor}, torch {torch.__version__}, 1 thread, {arguments.rounds} rounds, {TOKENS} tokens, "
          f"width {arguments.width}; seconds of CPU time [fastest to slowest], MiB")
    ways = {"linear + cross_entropy": plain, "linear_cross_entropy": ours, "  gradients in backward": again}
    ways = {name: way for name, way in ways.items() if way.__name__ in arguments.ways.split(",")}
    for dtype in arguments.dtypes.split(","):
        for vocabulary in map(int, arguments.vocabularies.split(",")):
            torch.manual_seed(0)
            kind = getattr(torch, dtype)
            hidden = torch.randn(TOKENS, arguments.width).to(kind).requires_grad_()
            weight = (torch.randn(vocabulary, arguments.width) * 0.05).to(kind).requires_grad_()
            target = torch.randint(0, vocabulary, (TOKENS,))
            times, peaks = {name: [] for name in ways}, {}
            for round in range(arguments.rounds + 1):
                for name, way in ways.items():
                    seconds, peaks[name] = step(way, hidden, weight, target, {})
                    if round:
                        times[name].append(seconds)
            base = statistics.median(times["linear + cross_entropy"])
            for name in ways:
                middle = statistics.median(times[name])
                print(f"{dtype:9} vocabulary {vocabulary:>6}  {name:24} {middle:7.2f} [{min(times[name]):.2f} to "
                      f"{max(times[name]):.2f}] = {middle / base:.2f}   {peaks[name] / 2**20:8.1f}", flush=True)


if __name__ == "__main__":
    main()
