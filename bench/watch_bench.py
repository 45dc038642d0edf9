"""What the step watch costs, beside the same steps without it, in one run.

    python bench/watch_bench.py [--quick] [--rounds=60] [--results=FILE]

Four models on one thread: a transformer stack with AdamW, a residual conv net with SGD, a net of wide layers whose step
takes some 100 ms, and a stack of very many small layers, the worst for a cost that is per op. Steps without a watch,
counting steps (the most) and close ones (the first 16, then 8 of every 128) take turns, so that what else the machine
does weighs on all alike; their order changes from round to round. Processor time of the thread. For each kind: the
median over the rounds of its ratio to the round's plain step, with quartiles; and the ratio of the first deciles of the
times, which a busy machine disturbs least. The long run has a close step in 16.
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

LOOKS = ("not", "counting", "closely")
CLOSE_SHARE = 1 / 16


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
    return model, torch.optim.SGD(model.parameters(), lr=1e-5), torch.randn(7, 3, 48, 48)


def layers(width, rows, number):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.LayerNorm(width)) for _ in range(number)])
    return model, torch.optim.SGD(model.parameters(), lr=1e-5), torch.randn(rows, width)


MODELS = {"transformer": transformer, "conv": conv, "layers": lambda: layers(160, 160, 120),
          "small_layers": lambda: layers(96, 96, 120)}


def measure(name, rounds):
    torch.manual_seed(0)
    model, optimizer, x = MODELS[name]()

    def step():
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def timed():
        begin = time.thread_time()
        step()
        return time.thread_time() - begin

    times = {look: [] for look in LOOKS}
    with lowtide.watch(on_finding=lambda finding: None) as watch:
        for _ in range(16):
            step()
        ops = watch.report()["ops"] / watch.report()["steps"]
        for i in range(rounds):
            for j in range(len(LOOKS)):
                look = LOOKS[(i + j) % len(LOOKS)]
                watch._core.look(look)
                step()  # what a change of look costs, and what the caches hold of the kind before
                times[look].append(timed())
    row = {"model": name, "plain_ms": 1000 * statistics.median(times["not"]), "ops_a_step": round(ops), "rounds": rounds}
    for look in LOOKS[1:]:
        ratios = statistics.quantiles([a / b for a, b in zip(times[look], times["not"])], n=4)
        deciles = [statistics.quantiles(times[kind], n=10)[0] for kind in (look, "not")]
        row[look] = {"ratio": ratios[1], "quartiles": [ratios[0], ratios[2]], "ratio_of_deciles": deciles[0] / deciles[1]}
    row["long_run"] = row["counting"]["ratio"] + CLOSE_SHARE * (row["closely"]["ratio"] - row["counting"]["ratio"])
    return row


def measure_off(rounds):
    """Small ops before the first watch of the process, in its counting and close steps, and after it has ended."""
    x = torch.randn(8)

    def ops():
        begin = time.thread_time()
        for _ in range(20000):
            x + x
        return (time.thread_time() - begin) / 20000 * 1e9

    ops()
    before = [ops() for _ in range(rounds)]
    times = {}
    with lowtide.watch() as watch:
        for look in LOOKS[1:]:
            watch._core.look(look)
            times[look] = min(ops() for _ in range(rounds))
    after = [ops() for _ in range(rounds)]
    return {"before_ns": min(before), "counting_ns": times["counting"], "closely_ns": times["closely"], "after_ns": min(after)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 8 if options.quick else options.rounds
    rows = {"off": measure_off(3 if options.quick else 20), "models": []}
    off = rows["off"]
    print(f"a small add: {off['before_ns']:.0f} ns before the first watch, {off['counting_ns']:.0f} counted, "
          f"{off['closely_ns']:.0f} looked at, {off['after_ns']:.0f} after")
    for name in MODELS:
        row = measure(name, rounds)
        rows["models"].append(row)
        print(f"{name:12} {row['plain_ms']:6.1f} ms, {row['ops_a_step']:5} ops a step:", end="")
        for look in LOOKS[1:]:
            one = row[look]
            print(f"  {look} {one['ratio']:.4f} ({one['quartiles'][0]:.4f} to {one['quartiles'][1]:.4f}; deciles "
                  f"{one['ratio_of_deciles']:.4f})", end="")
        print(f"  long run {row['long_run']:.4f}", flush=True)
    if options.results:
        rows["machine"] = {
            "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__,
            "python": platform.python_version(), "command": " ".join(sys.argv)}
        with open(options.results, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
