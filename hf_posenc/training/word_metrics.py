"""Metrics of labelled words, and of the spans that the labels mark."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score
from transformers import EvalPrediction

from ..data.words import IGNORED


@torch.no_grad()
def answers_and_losses(logits: Any, labels: torch.Tensor) -> torch.Tensor:
    """Reduces logits (B, S, C) to the answer and the loss of each token, float32 (B, S, 2)."""
    scores = (logits[0] if isinstance(logits, tuple) else logits).float()
    losses = torch.nn.functional.cross_entropy(scores.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    return torch.stack((scores.argmax(-1).float(), losses), -1)


class WordMetrics:
    """`compute_metrics` of the Trainer: loss and metrics of words, each word counting once."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.labels: np.ndarray | None = None
        """The label of each word of the last evaluation, by number."""
        self.predicted: np.ndarray | None = None

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """The numbers of one evaluation."""
        labels = np.asarray(prediction.label_ids)
        predicted, losses = np.moveaxis(np.asarray(prediction.predictions), -1, 0)
        counted = labels != IGNORED
        self.labels, self.predicted = labels[counted], predicted[counted].astype(np.int64)
        sentences = (
            [[self.names[int(number)] for number in row[mask]] for row, mask in zip(rows, counted, strict=True)]
            for rows in (labels, predicted)
        )
        return {"loss": float(losses[counted].mean(dtype=np.float64)), **word_scores(self.names, *sentences)}


def word_scores(
    names: Sequence[str], labels: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Accuracy and macro F1 of words; precision, recall and F1 of spans where `names` mark spans."""
    flat_labels, flat_predicted = ([label for row in rows for label in row] for rows in (labels, predicted))
    scores = {
        "accuracy": float(accuracy_score(flat_labels, flat_predicted)),
        "macro_f1": float(f1_score(flat_labels, flat_predicted, average="macro", zero_division=0)),
    }
    return scores | span_scores(labels, predicted) if uses_bio_tags(names) else scores


def uses_bio_tags(names: Sequence[str]) -> bool:
    """Whether labels mark spans with B- and I-."""
    return any(name[:2] in ("B-", "I-") for name in names)


def spans(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """The spans of BIO labels (also BIOES, BILOU and the older IOB): kind, first word, word after the last.

    As in conlleval, an I- of another kind than the word before begins a span too.
    """
    kind, start = None, 0
    for place, tag in enumerate([*tags, "O"]):
        mark, _, name = tag.partition("-")
        begins = mark in ("B", "S", "U") or (mark in ("I", "E", "L") and name != kind)
        if kind is not None and (begins or mark == "O"):
            yield kind, start, place
            kind = None
        if begins:
            kind, start = name, place
        if mark in ("E", "L", "S", "U") and kind is not None:
            yield kind, start, place + 1
            kind = None


def span_scores(labels: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of spans over all sentences; 0 where there are none."""
    right, answers = (
        {(row, *span) for row, tags in enumerate(sentences) for span in spans(tags)}
        for sentences in (labels, predicted)
    )
    both = len(right & answers)
    return {
        "span_precision": both / max(len(answers), 1),
        "span_recall": both / max(len(right), 1),
        "span_f1": 2 * both / max(len(right) + len(answers), 1),
    }
