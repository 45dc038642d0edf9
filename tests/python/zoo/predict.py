"""One model of the zoo: peaks predicted from slices, and counted; prints them as JSON. Run by scripts/predict-zoo."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import torch

import lowtide
import own_models

SIZES = (8, 20, 32)
STEPS = 3


def case_of(name: str, count: int) -> tuple[torch.nn.Module, Any, Any]:
    if name in own_models.CASES:
        return own_models.CASES[name](count)
    import transformers_models

    return transformers_models.make_case(name, count)


def row_of(name: str, count: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, batch, loss_of = case_of(name, count)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()

    gc.collect()
    meter = lowtide.meter()
    begin = time.process_time()
    p = lowtide.predict(step, batch)
    predict_s = time.process_time() - begin
    predict_peak = meter.peak_bytes
    gc.collect()
    meter.reset_peak()
    begin = time.process_time()
    for _ in range(STEPS):
        step(batch)
    step_s = (time.process_time() - begin) / STEPS
    return {
        "batch": count, "predicted_bytes": p.peak_bytes, "counted_bytes": meter.peak_bytes,
        "error": p.peak_bytes / meter.peak_bytes - 1, "error_bound": p.error_bound, "slices": p.slices, "notes": p.notes,
        "adds_up": sum(p.by_kind.values()) == p.peak_bytes == sum(p.by_module.values()),
        "peak_while_predicting": predict_peak, "predict_s": predict_s, "step_s": step_s}


def main() -> None:
    torch.set_num_threads(1)
    name = sys.argv[1]
    rows = [row_of(name, count) for count in own_models.SIZES.get(name, SIZES)]
    print(json.dumps({"model": name, "rows": rows}))


if __name__ == "__main__":
    main()
