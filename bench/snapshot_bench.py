#!/usr/bin/env python3
"""Time and memory of `lowtide snapshot` on a made snapshot, beside pickle.load and torch's own tool.

    bench/snapshot_bench.py [--events 1000000] [--runs 5] [--program build/release/bin/lowtide] [--no-peers]
                            [--huge | --file SNAPSHOT] [--mosaic FOLDER]

Each program is a process of its own; its processor time and its largest resident memory are what the
system reports when it ends. The peers are run once, the program `--runs` times; medians are shown.
pickle.load alone says what any tool written in Python pays before it begins. torch's tool is
`python -m torch.cuda._memory_viz`, from the environment that runs this script. Mosaic is run from a checkout
of facebookresearch/mosaic, by the Python that PYTHON names (it needs pandas, altair, omegaconf, click).
"""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def measure(command):
    """Wall seconds, processor seconds, resident MiB."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - started
    if status != 0:
        print(f"  {command[:3]} failed: {process.stderr.read().decode()[-300:]}")
        return None
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def show(name, runs):
    runs = [run for run in runs if run]
    if not runs:
        return
    wall, cpu, memory = (statistics.median(column) for column in zip(*runs))
    spread = max(run[1] for run in runs) - min(run[1] for run in runs)
    print(f"  {name:<34} {wall:7.2f} s wall {cpu:7.2f} s cpu (spread {spread:.2f}) {memory:8.0f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/lowtide"))
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--huge", action="store_true", help="make the file without Python holding it")
    parser.add_argument("--file")
    parser.add_argument("--mosaic", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lowtide_snapshot_") as folder:
        path = options.file or os.path.join(folder, "made.pickle")
        if not options.file:
            maker = ROOT / "tests/data/snapshots/make_snapshots.py"
            subprocess.run([sys.executable, maker, "--huge" if options.huge else "--large", str(options.events), path], check=True)
        print(f"{os.path.getsize(path) / 1e6:.1f} MB")
        measure(["cat", path])  # into the page cache
        show("lowtide snapshot", [measure([options.program, "snapshot", path]) for _ in range(options.runs)])
        show("lowtide snapshot --json", [measure([options.program, "snapshot", path, "--json"]) for _ in range(options.runs)])
        show("lowtide replay", [measure([options.program, "replay", path])])
        show("lowtide report", [measure([options.program, "report", path, "-o", os.path.join(folder, "page.html")])])
        if options.mosaic:
            os.environ["PYTHONPATH"] = str(options.mosaic)
            python = os.environ.get("PYTHON", sys.executable)
            peak = [python, "-m", "mosaic.cmd.get_memory_usage_peak", "--snapshot", path]
            show("mosaic get_memory_usage_peak", [measure(peak)])
            del os.environ["PYTHONPATH"]
        if options.no_peers:
            return
        load = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
        show("python pickle.load", [measure([sys.executable, "-c", load, path])])
        viz = [sys.executable, "-m", "torch.cuda._memory_viz"]
        show("torch _memory_viz stats", [measure([*viz, "stats", path])])
        show("torch _memory_viz trace", [measure([*viz, "trace", path])])
        show("torch _memory_viz trace_plot", [measure([*viz, "trace_plot", path, "-o", os.path.join(folder, "t.html")])])


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
