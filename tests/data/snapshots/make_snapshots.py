#!/usr/bin/env python3
"""Writes the snapshots beside it: made data, nobody's run.

    make_snapshots.py [--large|--huge EVENTS FILE]

step.pickle     one training step on device 0, recorded from the beginning, with an out-of-memory event
later.pickle    the same some steps later: a list of losses has grown
call.pickle     what an attacker would write: a call of os.getcwd
cut.pickle      step.pickle without its end
holes.pickle    on device 1: a request that fails although there is room, in holes too small for it

--large writes a trace of EVENTS events with the stacks of a deep model, for measuring. --huge does so
instruction by instruction, one block of 999 events again and again, for files that Python could not hold.
"""

import os
import pathlib
import pickle
import random
import sys

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
SITE = "/opt/env/lib/python3.12/site-packages/torch/"


def frame(name, filename, line):
    return {"name": name, "filename": filename, "line": line}


def stack(*frames):
    return [frame(*f) for f in frames]


MAIN = ("<module>", "/home/ann/job/train.py", 31)
FORWARD = stack(
    ("relu", SITE + "nn/functional.py", 1500),
    ("forward", "/home/ann/job/model.py", 41),
    ("_call_impl", SITE + "nn/modules/module.py", 1790),
    MAIN,
)
LINEAR = stack(
    ("forward", SITE + "nn/modules/linear.py", 125),
    ("forward", "/home/ann/job/model.py", 38),
    ("_call_impl", SITE + "nn/modules/module.py", 1790),
    MAIN,
)
SETUP = stack(("convert", SITE + "nn/modules/module.py", 1300), ("main", "/home/ann/job/train.py", 12))
OPTIMIZER = stack(("step", SITE + "optim/adam.py", 220), ("<module>", "/home/ann/job/train.py", 35))
LOSSES = stack(("log", "/home/ann/job/train.py", 52), MAIN)
BACKWARD = []  # the autograd thread has no Python frames


class Recorder:
    """A program's requests, laid out in segments as the allocator would for these few sizes."""

    def __init__(self, device=0):
        self.device = device
        self.events = []
        self.segments = {}
        self.live = {}
        self.time = 1_700_000_000_000_000
        self.next_segment = 0x7F5000000000

    def event(self, action, address, size, frames):
        self.time += 25
        key = "device_free" if action == "oom" else "addr"
        self.events.append(
            {
                "action": action,
                key: address,
                "size": size,
                "stream": 0,
                "time_us": self.time,
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": frames,
            }
        )

    def alloc(self, size, frames):
        small = size <= MIB
        rounded = (size + 511) // 512 * 512
        best = None
        for base, segment in self.segments.items():
            if segment["small"] != small:
                continue
            for block in segment["blocks"]:
                if block["state"] != "inactive" or block["size"] < rounded:
                    continue
                if best is None or (block["size"], block["address"]) < (best[1]["size"], best[1]["address"]):
                    best = (segment, block)
        if best is None:
            total = 2 * MIB if small else 20 * MIB if rounded < 10 * MIB else (rounded + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            base = self.next_segment
            self.next_segment += 1 << 28
            self.event("segment_alloc", base, total, frames)
            segment = {
                "small": small,
                "frames": frames,
                "size": total,
                "blocks": [{"address": base, "size": total, "requested_size": 0, "state": "inactive", "frames": []}],
            }
            self.segments[base] = segment
            best = (segment, segment["blocks"][0])
        segment, block = best
        rest = block["size"] - rounded
        if rest >= 512 if small else rest > MIB:
            block["size"] = rounded
            segment["blocks"].insert(
                segment["blocks"].index(block) + 1,
                {"address": block["address"] + rounded, "size": rest, "requested_size": 0, "state": "inactive", "frames": []},
            )
        block.update(requested_size=size, state="active_allocated", frames=frames)
        self.live[block["address"]] = segment
        self.event("alloc", block["address"], size, frames)
        return block["address"]

    def free(self, address, frames):
        segment = self.live.pop(address)
        blocks = segment["blocks"]
        at = next(i for i, block in enumerate(blocks) if block["address"] == address)
        block = blocks[at]
        self.event("free_requested", address, block["requested_size"], frames)
        self.event("free_completed", address, block["requested_size"], frames)
        block.update(requested_size=0, state="inactive", frames=[])
        if at + 1 < len(blocks) and blocks[at + 1]["state"] == "inactive":
            block["size"] += blocks.pop(at + 1)["size"]
        if at > 0 and blocks[at - 1]["state"] == "inactive":
            blocks[at - 1]["size"] += blocks.pop(at)["size"]

    def snapshot(self):
        segments = []
        for base, segment in self.segments.items():
            active = sum(b["size"] for b in segment["blocks"] if b["state"] == "active_allocated")
            segments.append(
                {
                    "device": self.device,
                    "address": base,
                    "total_size": segment["size"],
                    "allocated_size": active,
                    "active_size": active,
                    "requested_size": sum(b["requested_size"] for b in segment["blocks"]),
                    "stream": 0,
                    "segment_type": "small" if segment["small"] else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": segment["frames"],
                    "blocks": segment["blocks"],
                }
            )
        return {
            "segments": segments,
            "device_traces": [[]] * self.device + [self.events],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "max_split_size": -1,
                "garbage_collection_threshold": 0.0,
                "expandable_segments": False,
                "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
            },
            "external_annotations": [],
        }


def train(steps, fails):
    run = Recorder()
    parameters = [run.alloc(size, SETUP) for size in (8 * MIB, 3 * MIB, 40_000)]
    state = []
    for step in range(steps):
        activations = [run.alloc(12 * MIB, LINEAR), run.alloc(12 * MIB, FORWARD), run.alloc(5 * MIB, LINEAR)]
        run.alloc(3_000, LOSSES)
        gradients = []
        for activation, size in zip(reversed(activations), (40_000, 3 * MIB, 8 * MIB)):
            scratch = run.alloc(6 * MIB, BACKWARD)
            gradients.append(run.alloc(size, BACKWARD))
            run.free(activation, BACKWARD)
            run.free(scratch, BACKWARD)
        if not state:
            state = [run.alloc(size, OPTIMIZER) for size in (8 * MIB, 8 * MIB, 3 * MIB, 3 * MIB)]
        update = run.alloc(8 * MIB, OPTIMIZER)
        run.free(update, OPTIMIZER)
        for gradient in gradients:
            run.free(gradient, stack(("zero_grad", SITE + "optim/optimizer.py", 900), MAIN))
    if fails:
        run.event("oom", 11 * MIB, 640 * MIB, FORWARD)
    assert len(parameters) == 3
    return run.snapshot()


def holes():
    """Two blocks of 7 MiB to a segment of 20: what is left of each is too small for anything."""
    run = Recorder(device=1)
    for _ in range(4):
        run.alloc(7 * MIB, SETUP)
    for i in range(16):
        run.alloc(7 * MIB, LINEAR if i % 2 else FORWARD)
    run.event("oom", 10 * MIB, 40 * MIB, LINEAR)
    return run.snapshot()


def large(events, path):
    """Deep stacks, many of them, each list of frames an object of its own for a while."""
    random.seed(1)
    frames = [frame(f"forward_{i % 90}", f"/home/ann/job/models/block_{i // 10}.py", 10 + i) for i in range(660)]
    stacks = [[random.choice(frames) for _ in range(32)] for _ in range(3000)]
    run = Recorder()
    data = train(2, False)
    trace = []
    time = run.time
    live = []
    address = 0x7F6000000000
    while len(trace) < events:
        time += 3
        frames_now = list(stacks[random.randrange(len(stacks))])
        base = {"stream": 0, "compile_context": "N/A", "user_metadata": ""}
        if len(live) < 300 or random.random() < 0.5:
            address += 1 << 21
            size = random.randrange(1, 1 << 20)
            live.append((address, size))
            trace.append({"action": "alloc", "addr": address, "size": size, **base, "time_us": time, "frames": frames_now})
        else:
            at, size = live.pop(random.randrange(len(live)))
            for action in ("free_requested", "free_completed"):
                trace.append({"action": action, "addr": at, "size": size, **base, "time_us": time, "frames": frames_now})
    data["device_traces"] = [trace]
    with open(path, "wb") as file:
        pickle.dump(data, file, protocol=4)
    print(f"{path}: {len(trace)} events, {os.path.getsize(path)} bytes")


def huge(events, path):
    """As Python would pickle it: keys, frames and texts once, then lists of 32 frames an event."""
    random.seed(2)
    memo = 0
    begin = bytearray(b"\x80\x04")

    def put(instructions):
        nonlocal memo
        begin.extend(instructions + b"\x94")
        memo += 1
        return fetch(memo - 1)

    def fetch(slot):
        return b"h" + bytes([slot]) if slot < 256 else b"j" + slot.to_bytes(4, "little")

    def text(value):
        return put(b"\x8c" + bytes([len(value)]) + value.encode())

    def wide(value):
        return b"\x8a\x08" + value.to_bytes(8, "little")

    # A dict whose first entry, unknown to every reader, holds what the events share.
    put(b"}")
    begin.extend(b"(")
    text("shared")
    put(b"]")
    begin.extend(b"(")
    words = ["action", "addr", "size", "stream", "time_us", "frames", "name", "filename", "line"]
    known = {word: text(word) for word in words + ["alloc", "free_requested", "free_completed"]}
    frames = []
    for i in range(660):
        file, name = text(f"/home/ann/job/models/block_{i // 10}.py"), text(f"forward_{i % 90}")
        frames.append(put(b"}"))
        begin.extend(b"(" + known["name"] + name + known["filename"] + file + known["line"])
        begin.extend(b"M" + (10 + i).to_bytes(2, "little") + b"u")
    begin.extend(b"e")
    text("segments")
    put(b"]")
    text("device_traces")
    put(b"]")
    put(b"]")
    block = bytearray(b"(")

    def event(action, i):
        block.extend(b"}\x94(" + known["action"] + known[action])
        block.extend(known["addr"] + wide(0x7F0000000000 + (i << 21)))
        block.extend(known["size"] + b"J" + (1000 + i).to_bytes(4, "little") + known["stream"] + b"K\0")
        block.extend(known["time_us"] + wide(1_700_000_000_000_000 + i) + known["frames"] + b"]\x94(")
        block.extend(b"".join(random.choice(frames) for _ in range(32)) + b"eu")

    for i in range(333):
        event("alloc", i)
    for i in range(333):
        event("free_requested", i)
        event("free_completed", i)
    block.extend(b"e")
    with open(path, "wb") as file:
        file.write(begin)
        for _ in range(events // 999):
            file.write(block)
        file.write(b"au.")
    print(f"{path}: {events // 999 * 999} events, {os.path.getsize(path)} bytes")


class Call:
    def __reduce__(self):
        return os.getcwd, ()


def main():
    if sys.argv[1:2] == ["--large"]:
        return large(int(sys.argv[2]), sys.argv[3])
    if sys.argv[1:2] == ["--huge"]:
        return huge(int(sys.argv[2]), sys.argv[3])
    step = pickle.dumps(train(1, True), protocol=4)
    (HERE / "step.pickle").write_bytes(step)
    (HERE / "later.pickle").write_bytes(pickle.dumps(train(4, False), protocol=2))
    (HERE / "holes.pickle").write_bytes(pickle.dumps(holes(), protocol=5))
    (HERE / "cut.pickle").write_bytes(step[: len(step) * 2 // 3])
    (HERE / "call.pickle").write_bytes(pickle.dumps({"segments": Call()}, protocol=4))


if __name__ == "__main__":
    main()
