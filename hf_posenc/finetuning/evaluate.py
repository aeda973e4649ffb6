"""Scores a checkpoint on labelled rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.preparing import DataSummary, labels_of, prepare, texts_of
from ..data.reading import LINE
from ..data.sources import read_split
from ..errors import UserError
from ..options import Options
from ..training.inference import cut_texts_in_words, logits_of
from ..training.losses import ClassificationLoss, loss_and_metrics
from ..training.metrics import answers_from_logits
from .loading import knowledge
from .prediction import Classifier
from .prediction_files import input_name

_ADDED = ("line", "answer")
"""What stands beside the columns of a row that is answered wrongly."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        metrics: loss and the metrics of the task.
        examples: how many rows were scored.
        data: what was read, used and left out.
        cut: how many texts were cut, in words; empty if none was.
        errors: the rows whose label is wrong, with all columns of the file and the answer.
    """

    metrics: dict[str, float]
    examples: int
    data: DataSummary
    cut: str
    errors: list[dict[str, Any]]


def evaluate(
    classifier: Classifier,
    options: Options,
    split: str = "test",
    *,
    batch_size: int = 64,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Scores a classifier on a file, or on one split of a folder or a data set.

    Args:
        classifier: what `load_classifier` returned.
        options: of the data.
        split: of a folder or a data set.
        batch_size: texts per forward pass.
        progress: called with the number of texts after each batch.

    Raises:
        UserError: the data can't be read, has no labels, or other labels than the model's.
    """
    table = read_split(options, split)
    known = knowledge(classifier.model.config, classifier.name)
    prepared = prepare({"test": table}, options, known)
    part, kind = prepared.splits["test"], prepared.labels.problem_type
    right = labels_of(part)
    if right is None:
        raise UserError(f"The data has no labels in column {prepared.columns.label!r}. Name it with --label-column.")
    truncated: dict[int, int] = {}
    texts = zip(*texts_of(part), strict=True)
    answers = logits_of(
        classifier.model, classifier.tokenizer, texts, batch_size, truncated=truncated, progress=progress
    )
    logits, labels = np.stack(list(answers)), np.asarray(right)
    loss = ClassificationLoss(kind, label_scale=getattr(classifier.model.config, "label_scale", 1.0))
    metrics = loss_and_metrics(loss, logits, labels)
    wrong = [] if kind == "regression" else _wrong(logits, labels, kind)
    given = answers_from_logits(logits[wrong], known.label_names, kind) if wrong else []
    lines = {line: row for row, line in enumerate(table[LINE][:])}
    rows = [table[lines[part[LINE][number]]] for number in wrong]
    errors = [
        {input_name(name, _ADDED): value for name, value in row.items() if name != LINE}
        | {"line": row[LINE], "answer": answer}
        for row, answer in zip(rows, given, strict=True)
    ]
    cut = cut_texts_in_words(truncated, classifier.tokenizer)
    return Evaluation(metrics, len(part), prepared.summary, cut, errors)


def _wrong(logits: np.ndarray, labels: np.ndarray, problem_type: str) -> list[int]:
    """The numbers of the rows that are answered wrongly."""
    if problem_type == "single_label_classification":
        return np.flatnonzero(logits.argmax(-1) != labels).tolist()
    return np.flatnonzero(((logits > 0) != (labels > 0)).any(-1)).tolist()
