#!/usr/bin/env python3
"""Time and memory of `lowtide explain` on a log of a gigabyte, and of starting the program.

    bench/explain_log.py [--program build/release/bin/lowtide] [--megabytes 1000]

Prints the median and the spread of five runs, after one that warms the file cache. The log is made anew in a
temporary folder and removed.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

LINE = (
    "2024-05-02 10:11:12,123 - INFO - epoch 3 step {} loss 0.4321 lr 1.0e-04 throughput 812.3 images/s\n"
)
END = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 5, in step\n'
    "    y = model(x)\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
    "23.65 GiB of which 500.00 MiB is free. Including non-PyTorch memory, this process has 23.00 GiB memory in "
    "use. Of the allocated memory 22.40 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but "
    "unallocated.\n"
)


def make_log(path, size):
    written = 0
    step = 0
    with open(path, "w", encoding="utf-8") as out:
        while written < size:
            piece = "".join(LINE.format(step + i) for i in range(20000))
            step += 20000
            written += out.write(piece)
        out.write(END)
        out.writelines(LINE.format(step + i) for i in range(1000))


def run(command):
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return seconds, usage.ru_maxrss / 1024, output


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/bin/lowtide", type=pathlib.Path)
    parser.add_argument("--megabytes", default=1000, type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "train.log"
        make_log(log, options.megabytes * 1_000_000)
        for name, command in (
            (f"explain a log of {options.megabytes} MB", [options.program, "explain", log]),
            ("start the program", [options.program, "--version"]),
        ):
            runs = [run(command) for _ in range(6)][1:]
            times = sorted(seconds for seconds, _, _ in runs)
            memory = max(megabytes for _, megabytes, _ in runs)
            if "explain" in name and b"Tried to allocate 1.00 GiB" not in runs[0][2].replace(b"\n  ", b" "):
                raise SystemExit("the message near the end was not found")
            print(
                f"{name}: median {statistics.median(times):.3f} s, {times[0]:.3f} to {times[-1]:.3f}, "
                f"at most {memory:.1f} MB resident"
            )


if __name__ == "__main__":
    main()
