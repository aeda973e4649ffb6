"""The README of a checkpoint."""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ..machine import versions
from ..markdown import plain, render
from .assessment import CLASS_HEAD, digits
from .report import Report

TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
TASK = "text-classification"
"""The task's name on the Hub."""
EXAMPLES = ('"Your text."', '{"text": "First text.", "text_pair": "Second text."}')
"""An input of its pipeline: a text, and a pair."""
HERE = "path/to/this/folder"
"""Stands in a checkpoint's card for its folder; `publish` puts the repository there."""


def card_of(report: Report) -> str:
    """The README of a run's checkpoint: metadata that the Hub reads, how to load it, results, and how it was made."""
    scheme = report.position_embedding_type
    scores = [
        (split, metric, value)
        for split, metrics in report.scores().items()
        for metric, value in metrics.items()
        if metric != "loss"
    ]
    metadata = ModelCardData(
        library_name="transformers",
        pipeline_tag=TASK,
        base_model=report.base_model,
        tags=None if scheme is None else ["posenc", scheme, "custom_code"],
        model_name=report.name,
        eval_results=_eval_results(scores, report.dataset),
    )
    return render(
        TEMPLATE,
        metadata=metadata.to_yaml(),
        report=report,
        scheme=scheme,
        task=TASK,
        example=EXAMPLES[report.is_pair],
        place=HERE,
        scores=[(split, metric, digits(value)) for split, metric, value in scores],
        assessment=report.assessment,
        class_head=CLASS_HEAD,
        hyperparameters=[(name, plain(value)) for name, value in _hyperparameters(report).items() if value is not None],
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


def _hyperparameters(report: Report) -> dict[str, Any]:
    """How it was trained; None: that isn't listed."""
    return {
        **report.recipe,
        "class_weights": report.options.get("class_weights"),
        "lora": report.options.get("lora") or None,
        "max_length": report.max_length,
        "seed": report.options.get("seed"),
        "weights": report.best and f"best by {report.best['metric']}: epoch {report.best['epoch']:g}",
        "parameters": f"{report.parameters:,}, positional {report.positional_parameters:,}",
    }
