"""What a run writes: the checkpoint with its README, the results and the predictions."""

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import files
from ..data.labels import Labels
from ..data.options import DataArguments
from ..errors import Diverged
from ..machine import versions
from ..options import plain_name
from ..training import checkpoints
from .arguments import as_dict
from .metrics import answers_from_logits
from .report import display_name, model_card
from .run import TRAINED_ON, Run


def save_run(
    run: Run,
    metrics: dict[str, float],
    history: list[dict[str, Any]],
    test_logits: np.ndarray | str | None,
    seconds: float,
    save_model: Callable[[str], None],
) -> None:
    """Writes the checkpoint with its README, the results and the predictions: all or, if that fails, none.

    Args:
        run: what was trained. All processes call this.
        metrics: what it reached.
        history: what was logged.
        test_logits: logits of the test examples, or the lines of the predictions file; None without predictions.
        seconds: how long it took.
        save_model: called with a folder, saves weights, code and tokenizer there.
    """
    training = run.training
    is_main = training.process_index == 0
    metrics = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    place = str(training.output_dir)
    earlier = partial(checkpoints.run_files, place) if training.do_train else tuple
    with files.replaced_together(place, is_main, earlier) as folder:
        if training.do_train:
            save_model(str(folder))
        if not is_main:
            return
        if training.do_train:
            if bad := checkpoints.not_finite_weights(folder):
                raise Diverged(f"Training diverged: {bad} holds NaN or infinity. Give a lower --learning-rate.")
            if run.assessment is not None:
                run.assessment.draw(folder)
            files.write_text(folder / "README.md", card_of(run, metrics))
            write_trained_on(run, folder)
        if test_logits is not None and run.labels is not None:
            lines = test_logits
            if not isinstance(lines, str):
                lines = _predictions(lines, run.labels, run.test_rows)
            files.write_text(folder / checkpoints.PREDICTIONS_NAME, lines)
        files.write_json(folder / checkpoints.RESULTS_NAME, results_of(run, metrics, history, seconds))
    if training.do_train:
        shutil.rmtree(Path(place, checkpoints.EARLIER), ignore_errors=True)


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
        "search": run.search,
        "assessment": run.assessment and run.assessment.to_dict(),
        "problem_type": run.summary.problem_type,
        "labels": list(run.summary.labels),
        "summary": run.summary.to_dict(),
        "history": history,
        "seconds": seconds and round(seconds, 1),
        "processes": run.training.world_size,
        "versions": versions(),
        "arguments": {
            "data": as_dict(run.data),
            "model": as_dict(run.arguments),
            "training": as_dict(run.training) | {"output_dir": _name(run)},
        },
    }


def dataset_name(data: DataArguments) -> str:
    """The data's name in reports: of the Hub, or of the folder or file without its path."""
    name = data.dataset_name or data.train_file or data.validation_file or data.test_file or "unknown"
    return Path(name).name if Path(name).exists() else name


def hub_name(name: str | None) -> str | None:
    """A model's Hub name for the card; None for a local folder."""
    return None if name is None or Path(name).exists() else name


def _name(run: Run) -> str:
    return display_name(str(run.training.output_dir))


def card_of(run: Run, metrics: dict[str, float], checkpoint: str | None = None) -> str:
    """The README of a run's checkpoint; with `checkpoint` that of the folder of that name in it."""
    training = run.training
    name = (training.hub_model_id if training.push_to_hub else None) or _name(run)
    is_new = run.arguments.model_name_or_path is None
    shown = {
        "learning_rate": training.learning_rate,
        "position_learning_rate_factor": training.position_learning_rate_factor,
        "word_learning_rate_factor": training.word_learning_rate_factor,
        "num_train_epochs": training.num_train_epochs if training.max_steps <= 0 else None,
        "max_steps": training.max_steps if training.max_steps > 0 else None,
        "batch size": training.train_batch_size * training.world_size * training.gradient_accumulation_steps,
        "schedule": "one-cycle" if training.one_cycle else plain_name(training.lr_scheduler_type),
        "warmup_steps": training.warmup_steps,
        "weight_decay": training.weight_decay,
        "hidden_dropout_prob": getattr(run.model.config, "hidden_dropout_prob", None),
        "initializer_range": getattr(run.model.config, "initializer_range", None) if is_new else None,
        "class_weights": getattr(training, "class_weights", None),
        "mlm_probability": getattr(training, "mlm_probability", None),
        "lora_rank": run.arguments.lora_rank if run.arguments.lora else None,
        "max_seq_length": run.summary.max_length,
        "seed": training.seed,
        "weights": run.best and f"best by {run.best['metric']}: epoch {run.best['epoch']:g}",
        "parameters": f"{run.summary.parameters:,}, positional {run.summary.positional_parameters:,}",
    }
    return model_card(
        name=name if checkpoint is None else f"{name}/{checkpoint}",
        model=run.model,
        labels=run.labels,
        columns=run.columns,
        dataset=dataset_name(run.data),
        metrics=metrics,
        hyperparameters={name: value for name, value in shown.items() if value is not None},
        assessment=run.assessment,
        data=run.summary.data,
        license=training.license,
        base_model=hub_name(run.arguments.pretrained or run.arguments.model_name_or_path),
        repo_id=name if training.push_to_hub else None,
    )


def _predictions(logits: np.ndarray, labels: Labels, rows: Sequence[int] | None) -> str:
    """One JSON line per test example: its label or labels with probabilities, or its number."""
    answers = answers_from_logits(logits, labels.names, labels.problem_type)
    numbered = zip(range(len(answers)) if rows is None else rows, answers, strict=True)
    lines = [json.dumps({"index": row, **answer}, ensure_ascii=False) for row, answer in numbered]
    return "".join(f"{line}\n" for line in lines)


def metrics_at(step: int, history: list[dict[str, Any]]) -> dict[str, float]:
    """The training and validation metrics that were logged at a step."""
    found: dict[str, float] = {}
    for entry in history:
        if entry["step"] == step:
            found |= {key: value for key, value in entry.items() if key.startswith(("train_", "eval_"))}
    return found
