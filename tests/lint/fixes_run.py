#!/usr/bin/env python3
"""Runs training programs before and after `lowtide lint --fix`, and compares weights and memory.

A safe fix must leave the weights equal to the last bit, and must stop what grew from growing. Growth is
counted in live autograd nodes and tensors that the garbage collector reaches, not in bytes of the process.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

# Each defines run(steps) -> (state_dict, whatever is alive at the end).
PROGRAMS = {
    "sum": """
import torch

def run(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = 0
    for _ in range(steps):
        x = torch.randn(4, 8)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
    return model.state_dict(), total
""",
    "list": """
import torch

def run(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    kept = []
    for _ in range(steps):
        x = torch.randn(4, 8)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(loss)
    return model.state_dict(), kept
""",
    "average": """
import torch

def run(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mean = torch.zeros(())
    for _ in range(steps):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = 0.9 * mean + 0.1 * loss
    return model.state_dict(), mean
""",
    "evaluation": """
import torch

def validate(model, loader):
    model.eval()
    total = 0
    for x in loader:
        total += model(x).pow(2).mean()
    model.train()
    return total

def run(steps):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict(), validate(model, [torch.randn(4, 8) for _ in range(steps)])
""",
    "shadow": """
import torch

def run(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, p in model.named_parameters():
            shadow[name] = 0.99 * shadow[name] + 0.01 * p
    return {**model.state_dict(), **{f"shadow.{n}": t.detach() for n, t in shadow.items()}}, shadow
""",
    "retain": """
import torch

def run(steps):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
    return model.state_dict(), None
""",
    "teacher": """
import torch

def run(steps):
    torch.manual_seed(0)
    teacher = torch.nn.Linear(8, 1)
    student = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(4, 8)
        t = teacher(x)
        loss = (student(x) - t.detach()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return student.state_dict(), t
""",
}
PROGRAMS["comprehension"] = """
import torch

def run(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    kept = [step(torch.randn(4, 8)) for _ in range(steps)]
    return model.state_dict(), kept
"""
PROGRAMS["generator"] = PROGRAMS["comprehension"].replace("kept = [", "kept = sum(").replace(
    "range(steps)]", "range(steps))"
)
PROGRAMS["meter"] = """
import torch

class Meter:
    def __init__(self):
        self.total = 0

    def update(self, value, n):
        self.total += value * n

def run(steps):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter()
    for _ in range(steps):
        loss = model(torch.randn(4, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss, 4)
    return model.state_dict(), meter.total
"""
PROGRAMS["held"] = """
import torch

def summary(model, head, parts):
    total = 0
    with torch.no_grad():
        for part in parts:
            hidden = model(part)
            total = total + hidden.mean()
        return head(total.view(1, 1))

def run(steps):
    torch.manual_seed(0)
    model, head = torch.nn.Linear(8, 4), torch.nn.Linear(1, 1)
    out = summary(model, head, [torch.randn(4, 8) for _ in range(steps)])
    return {"out": out}, None
"""
# What must stop growing; the others lower a peak or a constant.
GROWING = {"sum", "list", "average", "evaluation", "shadow", "comprehension", "generator", "meter"}

MEASURE = """
import sys, torch
sys.path.insert(0, {folder!r})
import program

def nodes(value, seen):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            nodes(part, seen)
        return
    start = getattr(value, "grad_fn", None)
    stack = [start] if start is not None else []
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack.extend(next_node for next_node, _ in node.next_functions)

counts = []
for steps in (5, 25):
    state, alive = program.run(steps)
    seen = set()
    nodes(alive, seen)
    counts.append(len(seen))
torch.save((state, counts), {out!r})
"""


def run_program(folder):
    out = str(folder / "out.pt")
    code = MEASURE.format(folder=str(folder), out=out)
    subprocess.run([sys.executable, "-c", code], check=True)
    import torch

    return torch.load(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    options = parser.parse_args()
    import torch

    problems = []
    for name, source in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            file = folder / "program.py"
            file.write_text(source)
            weights, counts = run_program(folder)
            done = subprocess.run(
                [options.program, "lint", "--fix", str(file)], capture_output=True, text=True
            )
            if file.read_text() == source:
                problems.append(f"{name}: nothing was fixed: {done.stdout}{done.stderr}")
                continue
            fixed_weights, fixed_counts = run_program(folder)
            same = weights.keys() == fixed_weights.keys() and all(
                torch.equal(weights[key], fixed_weights[key]) for key in weights
            )
            if not same:
                problems.append(f"{name}: the weights differ after the fix")
            if done.returncode != 0:
                problems.append(f"{name}: findings are left: {done.stdout}")
            if name in GROWING:
                if counts[1] <= counts[0]:
                    problems.append(f"{name}: nothing grew before the fix: {counts}")
                if fixed_counts[1] > fixed_counts[0]:
                    problems.append(f"{name}: still grows after the fix: {fixed_counts}")
            print(f"{name:11} graph nodes alive after 5 and 25 steps: {counts} -> {fixed_counts}")
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
