"""What a run writes: the checkpoint with its README, the results and the predictions."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState

from .. import files
from ..errors import Diverged
from ..machine import versions
from .card import card_of
from .checkpoints import RESULTS_NAME, not_finite_weights
from .metrics import answers_from_logits
from .output_folder import EARLIER, PREDICTIONS_NAME, run_files
from .run import TRAINED_ON, Run


def save_run(
    run: Run,
    metrics: dict[str, float],
    history: list[dict[str, Any]],
    test_logits: np.ndarray | None,
    seconds: float,
    save_model: Callable[[str], None],
) -> None:
    """Writes the checkpoint with its README, the results and the predictions: all or, if that fails, none.

    Args:
        run: what was trained. All processes call this.
        metrics: what it reached.
        history: what was logged.
        test_logits: logits of the test examples; None without predictions.
        seconds: how long it took.
        save_model: called with a folder, saves weights, code and tokenizer there.
    """
    is_main = PartialState().is_main_process
    metrics = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    earlier = partial(run_files, run.output_dir) if run.trains else tuple
    with files.replaced_together(run.output_dir, is_main, earlier) as folder:
        if run.trains:
            save_model(str(folder))
        if not is_main:
            return
        if run.trains:
            if bad := not_finite_weights(folder):
                raise Diverged(f"Training diverged: {bad} holds NaN or infinity. Give a lower --learning-rate.")
            if run.assessment is not None:
                run.assessment.draw(folder)
            files.write_text(folder / "README.md", card_of(run, metrics))
            write_trained_on(run, folder)
        if test_logits is not None:
            files.write_text(folder / PREDICTIONS_NAME, _prediction_lines(run, test_logits))
        files.write_json(folder / RESULTS_NAME, results_of(run, metrics, history, seconds))
    if run.trains:
        shutil.rmtree(run.output_dir / EARLIER, ignore_errors=True)


def write_trained_on(run: Run, folder: Path) -> None:
    """Writes the marks of the texts that a run trains on, if they are known."""
    if run.trained_on is not None:
        np.save(folder / TRAINED_ON, np.unique(np.array(run.trained_on, dtype=np.uint64)))


def results_of(
    run: Run, metrics: dict[str, float], history: list[dict[str, Any]], seconds: float | None = None
) -> dict[str, Any]:
    """The content of `results.json`."""
    return {
        "metrics": metrics,
        "best": run.best,
        "assessment": run.assessment and asdict(run.assessment),
        "problem_type": run.summary.problem_type,
        "labels": list(run.summary.labels),
        "summary": run.summary.to_dict(),
        "history": history,
        "seconds": seconds and round(seconds, 1),
        "processes": run.processes,
        "versions": versions(),
        "arguments": {**run.options, "training": {**run.options["training"], "output_dir": run.name}},
    }


def _prediction_lines(run: Run, logits: np.ndarray) -> str:
    """One JSON line per test example: its label or labels with probabilities, or its number."""
    answers = answers_from_logits(logits, run.labels.names, run.labels.problem_type)
    numbers = range(len(answers)) if run.test_rows is None else run.test_rows
    lines = ({"index": number, **answer} for number, answer in zip(numbers, answers, strict=True))
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)


def metrics_at(step: int, history: list[dict[str, Any]]) -> dict[str, float]:
    """The training and validation metrics that were logged at a step."""
    metrics: dict[str, float] = {}
    for entry in history:
        if entry["step"] == step:
            metrics |= {key: value for key, value in entry.items() if key.startswith(("train_", "eval_"))}
    return metrics
