"""One runtime, alone in its process: reads a job from standard input, and prints what it took as JSON.

A runtime whose threads wait by spinning makes another in the same process look half as fast, so none has company.
"""

import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

from hf_posenc.finetuning.prediction import load_classifier
from hf_posenc.inference.logits import logits_of

FILE, FULL, SHORT = "file", "8x128", "one text"
REPEATS = {FILE: 1, FULL: 10, SHORT: 50}
"""How often each work runs; the median counts."""
BATCH = 32
"""Texts of the file that are predicted together."""


def time_job(job: dict[str, Any]) -> dict[str, float]:
    """Seconds of each work.

    Args:
        job: `folder`, `backend`, `precision`, `window` (`read_ahead` of `logits_of`); `rows`, token ids by work;
            `answers`, the .npy file that the logits of `FILE` go into.
    """
    in_torch, bf16 = job["backend"] == "torch", job["precision"] == "bf16"
    seconds = {}
    for work, rows in job["rows"].items():
        graph_options: dict[str, Any] = {"bf16": bf16 and not in_torch, "throughput": work == FILE}
        classifier = load_classifier(job["folder"], "cpu", backend=job["backend"], **graph_options)
        if in_torch and bf16:
            classifier.model.to(torch.bfloat16)
        taken = []
        for _ in range(1 + REPEATS[work]):
            started = time.perf_counter()
            answers = list(logits_of(classifier.model, classifier.tokenizer, rows, BATCH, read_ahead=job["window"]))
            taken.append(time.perf_counter() - started)
        if work == FILE:
            np.save(job["answers"], np.stack(answers))
        seconds[work] = statistics.median(taken[1:])  # in the first each shape is compiled
    return seconds


if __name__ == "__main__":
    print(json.dumps(time_job(json.load(sys.stdin))))
