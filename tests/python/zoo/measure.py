"""One model of the zoo, plainly and inside limits; prints what came of it as JSON. Run by scripts/zoo."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import torch

import own_models
import training

# A refusal in the first step knows only what that step needed so far; the next one knows more.
MOST_REFUSALS = 40


def case_of(name: str) -> training.Case:
    if name in own_models.CASES:
        return lambda: own_models.case(name)
    import transformers_models

    return lambda: transformers_models.case(name)


def row_of(case: training.Case, plain: training.Run, limit: int) -> dict[str, Any]:
    """At ``limit``, or at the smallest budget that the refusals there lead to."""
    row: dict[str, Any] = {"limit_bytes": limit, "refusals": 0, "named_bytes": None}
    while True:
        try:
            run = training.train(case, limit)
        except training.Refused as refused:
            row["refusals"] += 1
            row["last_refusal_was_bound"] = refused.is_bound
            if row["refusals"] > MOST_REFUSALS or refused.smallest <= limit:
                row["problem"] = str(refused)
                return row
            limit = row["named_bytes"] = refused.smallest
            continue
        row.update(
            peak_bytes=run.peak_bytes, within=run.peak_bytes <= limit, same=training.same(plain, run),
            processor_time_of_plain=run.processor_s / plain.processor_s,
            recomputed_share=run.report["recompute_s"] / run.processor_s,
            smallest_budget_bytes=run.report["smallest_budget_bytes"])
        return row


def main() -> None:
    torch.set_num_threads(1)
    case = case_of(sys.argv[1])
    training.train(case)  # warms up
    plain = training.train(case)
    again = training.train(case)
    result: dict[str, Any] = {
        "model": sys.argv[1], "peak_bytes": plain.peak_bytes, "static_bytes": plain.static_bytes,
        "plain_repeats": training.same(plain, again), "plain_s": plain.processor_s, "rows": {}}
    for fraction in training.FRACTIONS:
        limit = plain.static_bytes + int(fraction * (plain.peak_bytes - plain.static_bytes))
        result["rows"][str(fraction)] = row_of(case, plain, limit)
    floor = result["rows"]["1.0"].get("smallest_budget_bytes", 0)
    if floor:
        result["rows"]["smallest"] = row_of(case, plain, floor)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
