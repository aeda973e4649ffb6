"""The README of a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ..machine import versions
from ..markdown import plain, render
from .options import NO_SCORES
from .run import PREFIXES, Run

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
TASK = "text-classification"
"""The task's name on the Hub."""
EXAMPLES = ('"Your text."', '{"text": "First text.", "text_pair": "Second text."}')
"""An input of its pipeline: a text, and a pair."""
HERE = "path/to/this/folder"
"""Stands in a checkpoint's card for its folder; `publish` puts the repository there."""


def card_of(run: Run, metrics: Mapping[str, float], checkpoint: str | None = None) -> str:
    """The README of a run's checkpoint: metadata that the Hub reads, how to load it, results, and how it was made.

    Args:
        run: what was trained. One that is pushed is loaded from its repository, another from `HERE`.
        metrics: what it reached.
        checkpoint: name of the folder in the run's own that the README is for. None: the run's own.
    """
    scheme, name = run.summary.position_embedding_type, run.repo_id or run.name
    splits = {prefix: split for split, prefix in PREFIXES.items()}
    parts = (
        (*key.partition("_")[::2], value) for key, value in metrics.items() if not key.endswith(("loss", *NO_SCORES))
    )
    scores = [(splits[prefix], metric, value) for prefix, metric, value in parts if prefix in splits]
    title = name if checkpoint is None else f"{name}/{checkpoint}"
    metadata = ModelCardData(
        license=run.options["training"]["license"],
        library_name="transformers",
        pipeline_tag=TASK,
        base_model=run.base_model,
        tags=None if scheme is None else ["posenc", scheme, "custom_code"],
        model_name=title,
        eval_results=_eval_results(scores, run.dataset),
    )
    return render(
        TEMPLATE,
        metadata=metadata.to_yaml(),
        name=title,
        architecture=run.summary.model,
        scheme=scheme,
        dataset=run.dataset,
        task=TASK,
        example=EXAMPLES[run.columns.is_pair],
        place=run.repo_id or HERE,
        scores=[(split, metric, f"{value:.4f}") for split, metric, value in scores],
        assessment=run.assessment,
        data=run.summary.data,
        labels=run.labels.names,
        hyperparameters=[(name, plain(value)) for name, value in _hyperparameters(run).items() if value is not None],
        versions=versions(),
    )


def _eval_results(scores: list[tuple[str, str, float]], dataset: str) -> list[EvalResult] | None:
    """Split, metric and value of each score, as the Hub reads them."""
    return [
        EvalResult(
            task_type=TASK,
            dataset_type=dataset,
            dataset_name=dataset,
            dataset_split=split,
            metric_type=metric,
            metric_value=round(value, 4),
        )
        for split, metric, value in scores
    ] or None


def _hyperparameters(run: Run) -> dict[str, Any]:
    """The options that a card lists, and what became of them; None: it doesn't."""
    training, model = run.options["training"], run.options["model"]
    return {
        "learning_rate": training["learning_rate"],
        "position_learning_rate_factor": training["position_learning_rate_factor"],
        "word_learning_rate_factor": training["word_learning_rate_factor"],
        "num_train_epochs": training["num_train_epochs"] if training["max_steps"] <= 0 else None,
        "max_steps": training["max_steps"] if training["max_steps"] > 0 else None,
        "batch size": run.batch_size,
        "schedule": "one-cycle" if training["one_cycle"] else training["lr_scheduler_type"],
        "warmup_steps": training["warmup_steps"],
        "weight_decay": training["weight_decay"],
        "hidden_dropout_prob": getattr(run.model.config, "hidden_dropout_prob", None),
        "initializer_range": getattr(run.model.config, "initializer_range", None) if run.is_new else None,
        "class_weights": training.get("class_weights"),
        "lora_rank": model["lora_rank"] if model["lora"] else None,
        "max_seq_length": run.summary.max_length,
        "seed": training["seed"],
        "weights": run.best and f"best by {run.best['metric']}: epoch {run.best['epoch']:g}",
        "parameters": f"{run.summary.parameters:,}, positional {run.summary.positional_parameters:,}",
    }
