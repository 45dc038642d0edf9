#!/usr/bin/env python3
"""Holds `lowtide plan` against an integer program on small made steps.

    oracle_test.py --program build/release/bin/lowtide [--rounds N] [--seconds S]

The program is Checkmate's (Jain et al. 2020): stage t computes op t for the first time, after running
any earlier ops again, each at most once a stage in the order of the step; binaries say what runs (run),
what is kept from one stage to the next (keep) and what is let go after which op (free). HiGHS solves it.
Budgets lie 75, 50, 33, 25 and 20 % of the way from the floor to the natural peak. Exits with 77 when highspy is not installed.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import highspy
except ImportError:
    print("skipped: highspy is not installed")
    sys.exit(77)


class Step:
    """Ops with one output each. reads[i]: earlier ops whose outputs op i reads."""

    def __init__(self, name):
        self.name = name
        self.cost, self.bytes, self.reads = [], [], []

    def op(self, cost, size, reads):
        self.cost.append(cost)
        self.bytes.append(size)
        self.reads.append(sorted(set(reads)))
        return len(self.cost) - 1

    def tape(self):
        lines = ["lowtide-tape 1", "make s0 1 parameter"]
        last_use = {i: i for i in range(len(self.cost))}
        for i, reads in enumerate(self.reads):
            for j in reads:
                last_use[j] = i
        end = len(self.cost) - 1
        for i, reads in enumerate(self.reads):
            inputs = ",".join(f"s{j + 1}" for j in reads) or "s0"
            lines.append(f"run op{i} {self.cost[i]} in={inputs} out=s{i + 1}:{self.bytes[i]}:saved")
            for j, last in last_use.items():
                if last == i and j != end:
                    lines.append(f"free s{j + 1}")
        lines += [f"hold s{end + 1}"]
        return "\n".join(lines) + "\n"


def chain(random_, length, unit):
    step = Step(f"{'unit ' if unit else ''}chain of {length}")
    made = []
    for i in range(length):
        cost, size = (1000, 8) if unit else (random_.randint(500, 4000), random_.randint(4, 12))
        made.append(step.op(cost, size, made[-1:]))
    gradient = None
    for i in reversed(range(length)):
        reads = [made[i]]
        reads += [gradient] if gradient is not None else []
        gradient = step.op(2 * step.cost[made[i]], step.bytes[made[i]], reads)
    return step


def graph(random_, length):
    """Skips and joins forward; backward reads each op's inputs and the gradients of its readers."""
    step = Step(f"graph of {length}")
    made = []
    for i in range(length):
        reads = made[-1:] + ([random_.choice(made)] if made and random_.random() < 0.4 else [])
        made.append(step.op(random_.randint(500, 4000), random_.randint(4, 12), reads))
    gradient = {}
    for i in reversed(range(length)):
        readers = [j for j in range(i + 1, length) if made[i] in step.reads[made[j]]]
        reads = [gradient[j] for j in readers] + step.reads[made[i]] + [made[i]]
        gradient[i] = step.op(2 * step.cost[made[i]], step.bytes[made[i]], reads)
    return step


def optimum(step, budget, seconds):
    """(status, extra time or None): 'optimal', 'infeasible' or 'unknown'."""
    n = len(step.cost)
    users = [[k for k in range(n) if i in step.reads[k]] for i in range(n)]
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", float(seconds))
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    total = sum(step.bytes)

    def binary(upper=1):
        return solver.addVariable(lb=0, ub=upper, type=highspy.HighsVarType.kInteger)

    run = [[binary(1 if i <= t else 0) for i in range(n)] for t in range(n)]
    keep = [[binary(1 if i < t else 0) for i in range(n)] for t in range(n + 1)]
    for t in range(n):
        solver.addConstr(run[t][t] == 1)
        for i in range(t + 1):
            for j in step.reads[i]:
                solver.addConstr(run[t][i] <= run[t][j] + keep[t][j])
        for i in range(n):
            if i <= t:
                solver.addConstr(keep[t + 1][i] <= run[t][i] + keep[t][i])
    solver.addConstr(keep[n][n - 1] == 1)
    for t in range(n):
        live = sum((step.bytes[i] * keep[t][i] for i in range(t)), start=0 * run[t][0])
        for k in range(t + 1):
            live = live + step.bytes[k] * run[t][k]
            solver.addConstr(live <= budget - 1)  # the parameter takes one byte
            for i in step.reads[k] + [k]:
                # After op k in stage t value i goes, unless it is kept or read later in the stage.
                free = binary()
                later = [j for j in users[i] if k < j <= t]
                solver.addConstr(free <= run[t][k])
                solver.addConstr(free <= 1 - keep[t + 1][i])
                for j in later:
                    solver.addConstr(free <= 1 - run[t][j])
                live = live - step.bytes[i] * free
        solver.addConstr(live <= total)
    cost = sum((step.cost[i] * run[t][i] for t in range(n) for i in range(t + 1)), start=0 * run[0][0])
    solver.minimize(cost)
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kOptimal:
        return "optimal", round(solver.getObjectiveValue())
    if status == highspy.HighsModelStatus.kInfeasible:
        return "infeasible", None
    return "unknown", None


def lowtide_plan(program, step, folder, *flags):
    """What `lowtide plan --json` says, or None when no plan fits."""
    path = folder / "step.tape"
    path.write_text(step.tape())
    done = subprocess.run([program, "plan", path, "--json", *flags], capture_output=True, text=True)
    if done.returncode == 3:
        return None
    if done.returncode != 0:
        sys.exit(f"{step.name}: lowtide plan failed: {done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=20, help="of the solver, for each budget")
    options = parser.parse_args()
    random_ = random.Random(7)
    bad = unknown = compared = refused = 0
    worst = {"chain": 1.0, "graph": 1.0}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            steps = [chain(random_, 8, True), chain(random_, 7, False), graph(random_, 7)]
            for step in steps:
                curve = lowtide_plan(options.program, step, pathlib.Path(folder))
                floor = curve["floor"]["bytes"]
                peak = curve["natural_peak_bytes"]
                for percent in (75, 50, 33, 25, 20):
                    budget = floor + (peak - floor) * percent // 100
                    status, best = optimum(step, budget, options.seconds)
                    answer = lowtide_plan(
                        options.program, step, pathlib.Path(folder), "--budget", str(budget)
                    )
                    mine = answer and answer["plan"]["total_ns"]
                    if status == "unknown":
                        unknown += 1
                        continue
                    kind = "graph" if step.name.startswith("graph") else "chain"
                    limit = 1.05 if kind == "graph" else 1.0
                    if status == "infeasible":
                        # More than one run of an op in a stage is beyond the program, not the planner.
                        refused += mine is None
                        continue
                    compared += 1
                    if mine is None or mine > limit * best:
                        bad += 1
                        print(f"{step.name} at {percent} %: planned {mine}, optimum {best}")
                    else:
                        worst[kind] = max(worst[kind], mine / best)
    print(
        f"{compared} compared, {refused} refused by both, {unknown} unsolved; worst to the optimum: "
        f"chains {worst['chain']:.3f}, graphs {worst['graph']:.3f}"
    )
    sys.exit(1 if bad or compared == 0 else 0)


if __name__ == "__main__":
    main()
