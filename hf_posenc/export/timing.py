"""One runtime, alone in its process: reads a job from standard input, and prints what it took as JSON.

A runtime whose threads wait by spinning makes another in the same process look half as fast, so none has company.
"""

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..benchmark import LinearLayers, linear_shapes
from ..finetuning.prediction import Classifier, load_classifier
from ..training.inference import logits_of

FILE, FULL, SHORT = "file", "8x128", "one text"
REPEATS = {FULL: 10, SHORT: 50}
"""How often the works of a single batch run; the median counts."""


def time_job(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each work, and of the linear layers alone on the same real tokens, for a model in PyTorch.

    Args:
        job: `folder`, `backend`, `precision`, `as_they_come`, `batch_size`; `rows`, token ids by work; `answers`, the
            .npy file that the logits of `FILE` go into.

    Returns:
        `seconds` and `linear_seconds` by work (the latter empty for graphs), and `batches`, how many `FILE` makes.
    """
    backend, bf16 = job["backend"], job["precision"] == "bf16"
    in_torch = backend == "torch"

    def load(work: str) -> Classifier:
        graph_options: dict[str, Any] = {"bf16": bf16 and not in_torch, "throughput": work == FILE}
        classifier = load_classifier(job["folder"], "cpu", backend=backend, **graph_options)
        if in_torch and bf16:
            classifier.model.to(torch.bfloat16)
        return classifier

    options: dict[str, Any] = {"batch_size": job["batch_size"]} | ({"window": 1} if job["as_they_come"] else {})
    seconds, linear, batches = {}, {}, {}

    for work, rows in job["rows"].items():
        classifier = load(work)
        batches[work] = recorded(classifier, rows, **options)
        if work == FILE:
            run = functools.partial(_answers, classifier, rows, options)
            np.save(job["answers"], np.stack(run()))  # the first time, so that each shape is compiled
            seconds[work] = timed(run)
        else:
            seconds[work] = timed(functools.partial(classifier.model, **batches[work][0]), REPEATS[work])
        if in_torch:
            linear[work] = linear_seconds(classifier.model, batches[work], REPEATS.get(work, 1))
    return {"seconds": seconds, "linear_seconds": linear, "batches": len(batches[FILE])}


def _answers(classifier: Classifier, rows: Any, options: dict[str, Any]) -> list[np.ndarray]:
    return list(logits_of(classifier.model, classifier.tokenizer, rows, **options))


def recorded(classifier: Classifier, rows: Any, **options: Any) -> list[dict[str, torch.Tensor]]:
    """The batches that `logits_of` makes of rows."""
    batches: list[dict[str, torch.Tensor]] = []

    class Recorder:
        device, name_or_path = torch.device("cpu"), ""

        def eval(self) -> None: ...

        def __call__(self, **batch: torch.Tensor) -> Any:
            batches.append(batch)
            return SimpleNamespace(logits=torch.zeros(len(batch["input_ids"]), 1))

    list(logits_of(Recorder(), classifier.tokenizer, rows, **options))
    return batches


def timed(step: Callable[[], Any], repeats: int = 1) -> float:
    """Seconds of a step, the median; single steps run before, too."""
    taken = []
    with torch.no_grad():
        for turn in range(repeats if repeats == 1 else repeats + 3):
            started = time.perf_counter()
            step()
            if repeats == 1 or turn >= 3:
                taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def linear_seconds(model: Any, batches: list[dict[str, torch.Tensor]], repeats: int) -> float:
    """Seconds of the encoder's matrix products alone, on the real tokens."""
    most = max(int(batch["attention_mask"].sum()) for batch in batches)
    products = LinearLayers(linear_shapes(model), most).eval().to(model.dtype)

    def run() -> None:
        for batch in batches:
            products(**batch)

    timed(run)
    return timed(run, repeats)


def main() -> None:
    """Runs the job; standard output ends in a line of JSON."""
    print(json.dumps(time_job(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
