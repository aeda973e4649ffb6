"""Measures the cost of a training step: after a warm-up the schemes take turns on the same batches.

The runs themselves don't tell: each had the machine at another time.
"""

import statistics
from collections.abc import Mapping
from typing import Any

import torch

from hf_posenc.benchmark import make_step, take_turns
from hf_posenc.model.modeling_posenc import PosEncForMaskedLM, PosEncForSequenceClassification
from hf_posenc.model.package_config import PosEncConfig
from hf_posenc.training.options import RunOptions

from .plan import Plan, Task
from .run import machine

SPEED_NAME = "speed.json"
ROUNDS, WARMUP = 11, 2


def measure_speed(plan: Plan, task: Task, runs: Mapping[str, dict[str, Any]], baseline: str) -> dict[str, Any]:
    """Times each scheme's forward and backward pass at the train length, relative to the baseline's.

    Args:
        plan, task: what is compared.
        runs: a run of each scheme, the baseline's among them.
        baseline: whose cost is 1.

    Returns:
        `schemes`: the median `milliseconds`, the median `cost` over the turns and its quartiles `low` and `high`.
    """
    options = plan.options_of(task)
    rows = int(options.get("per_device_train_batch_size", RunOptions.per_device_train_batch_size))
    length = plan.train_length_of(task)
    device = "cuda" if torch.cuda.is_available() and not options.get("use_cpu") else "cpu"
    kind: Any = PosEncForMaskedLM if task.kind == "masked_lm" else PosEncForSequenceClassification
    dtype = torch.bfloat16 if options.get("bf16") else torch.float32
    steps = {
        scheme: make_step(kind(PosEncConfig(**run["config"])).to(device), "training", dtype)
        for scheme, run in runs.items()
    }
    vocabulary = min(PosEncConfig(**run["config"]).vocab_size for run in runs.values())
    ids = torch.randint(vocabulary, (rows, length), device=device)
    labels = ids if task.kind == "masked_lm" else torch.zeros(rows, dtype=torch.long, device=device)
    seconds = take_turns(steps, [{"input_ids": ids, "labels": labels}], ROUNDS, WARMUP)
    schemes = {}
    for scheme, own in seconds.items():
        low, middle, high = statistics.quantiles((a / b for a, b in zip(own, seconds[baseline], strict=True)), n=4)
        schemes[scheme] = {"milliseconds": round(1000 * statistics.median(own), 2), "cost": round(middle, 3)}
        schemes[scheme] |= {"low": round(low, 3), "high": round(high, 3)}
    return {"schemes": schemes, "baseline": baseline, "rows": rows, "tokens": length, "machine": machine()}
