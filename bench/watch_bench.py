"""What the step watch costs, beside the same steps without it, in one run.

    python bench/watch_bench.py [--quick] [--pairs=40] [--results=FILE]

Three models whose plain step takes some 100 ms on one thread: a transformer stack with AdamW, a residual conv net with
SGD, and a stack of very many small layers, the worst for a cost that is per op. One watch lives over all of a model's steps; after its first eight, which learn and may name
something, it is paused for every second one. A pair is two steps on end; the median of the pairs' ratios is reported
with its quartiles, and the ratio of the shortest steps of both kinds, which a busy machine disturbs least. Processor
time of the process. "leaking" adds a list of losses to the first model, so that something is found and stays.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time

import lowtide
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, x):
        return torch.relu(x + self.body(x))


def transformer():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 4)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-5), torch.randn(4, 96, 128)


def conv():
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *[Residual(16) for _ in range(6)])
    return model, torch.optim.SGD(model.parameters(), lr=1e-5), torch.randn(4, 3, 48, 48)


def small_layers():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(96, 96), nn.Tanh(), nn.LayerNorm(96)) for _ in range(120)])
    return model, torch.optim.SGD(model.parameters(), lr=1e-5), torch.randn(96, 96)


MODELS = {"transformer": transformer, "conv": conv, "small_layers": small_layers, "leaking": transformer}


def measure(name, pairs):
    torch.manual_seed(0)
    model, optimizer, x = MODELS[name]()
    losses = []

    def step():
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if name == "leaking":
            losses.append(loss)

    def timed():
        begin = time.process_time()
        step()
        return time.process_time() - begin

    for _ in range(5):
        step()
    ratios, plain, watched, ops = [], [], [], 0
    with lowtide.watch(on_finding=lambda finding: None) as watch:
        first = [timed() for _ in range(8)]
        for i in range(pairs):
            pair = {}
            for paused in (False, True) if i % 2 else (True, False):
                watch._core.set_paused(paused)
                before = watch.report()["ops"]
                pair[paused] = timed()
                ops = max(ops, watch.report()["ops"] - before)
            ratios.append(pair[False] / pair[True])
            watched.append(pair[False])
            plain.append(pair[True])
    quarters = statistics.quantiles(ratios, n=4)
    return {
        "model": name, "plain_ms": 1000 * statistics.median(plain), "ops_a_step": ops, "ratio": quarters[1],
        "quartiles": [quarters[0], quarters[2]], "ratio_of_shortest": min(watched) / min(plain), "pairs": pairs,
        "first_eight_ms": [1000 * t for t in first]}


def measure_off(pairs):
    """Small ops before the first watch of the process and after it has ended."""
    x = torch.randn(8)

    def ops():
        begin = time.process_time()
        for _ in range(20000):
            x + x
        return (time.process_time() - begin) / 20000 * 1e9

    ops()
    before = [ops() for _ in range(pairs)]
    with lowtide.watch():
        during = [ops() for _ in range(pairs)]
    after = [ops() for _ in range(pairs)]
    return {"before_ns": min(before), "during_ns": min(during), "after_ns": min(after)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs = 8 if options.quick else options.pairs
    rows = {"off": measure_off(3 if options.quick else 10), "models": []}
    off = rows["off"]
    print(f"a small add: {off['before_ns']:.0f} ns before, {off['during_ns']:.0f} ns watched, {off['after_ns']:.0f} ns after")
    for name in MODELS:
        row = measure(name, pairs)
        rows["models"].append(row)
        print(f"{name:13} plain {row['plain_ms']:6.1f} ms, {row['ops_a_step']:5} ops a step, watched {row['ratio']:.4f} "
              f"({row['quartiles'][0]:.4f} to {row['quartiles'][1]:.4f}, {row['pairs']} pairs), shortest "
              f"{row['ratio_of_shortest']:.4f}", flush=True)
    if options.results:
        rows["machine"] = {
            "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__,
            "python": platform.python_version(), "command": " ".join(sys.argv)}
        with open(options.results, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
