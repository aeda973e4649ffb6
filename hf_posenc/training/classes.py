"""Class by class, as `train` and `evaluate` print it: precision, recall and F1, and which label is taken for which."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from ..markdown import markdown_table, plain

MOST_CLASSES = 12
"""Tables in the terminal and in the card have this many classes at most."""
_MOST_CONFUSED = 1_000
"""The confusion matrix of more labels would fill the memory, and results.json."""


def class_scores(labels: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """`label`, `precision`, `recall`, `f1`, `examples` of each class, scores None without examples.

    Args:
        labels: the right answers in the model's form: numbers (n,), or rows of 0 and 1 (n, C).
        predicted: the model's, in the same form.
        names: of the labels; none of a regression, which has no classes.
    """
    if not names:
        return []
    scores, numbers = ("precision", "recall", "f1"), list(range(len(names)))
    if labels.shape[1:] == (1,):  # scikit-learn takes one column of 0 and 1 for two classes
        numbers = [1]
    columns = precision_recall_fscore_support(labels.astype(int), predicted, labels=numbers, zero_division=0)
    return [  # without examples there is nothing to be right about
        {"label": name}
        | {score: float(value) if count else None for score, value in zip(scores, values, strict=True)}
        | {"examples": int(count)}
        for name, *values, count in zip(names, *columns, strict=True)
    ]


def confusion(labels: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> list[list[int]] | None:
    """Examples by right label (rows) and predicted label (columns); None: several labels a text, or too many in all."""
    if labels.ndim > 1 or not 0 < len(names) <= _MOST_CONFUSED:
        return None
    matrix: list[list[int]] = confusion_matrix(labels, predicted, labels=range(len(names))).tolist()
    return matrix


def class_table(where: str, classes: Sequence[dict[str, Any]], elsewhere: str) -> str:
    """Writes in Markdown what `class_scores` returned, the first classes; "-": no examples.

    Args:
        where: what was scored.
        classes: what `class_scores` returned.
        elsewhere: where the others are.
    """
    rows = [
        (
            plain(short(row["label"], 160)),
            *("-" if row[name] is None else f"{row[name]:.3f}" for name in ("precision", "recall", "f1")),
            f"{row['examples']:,}",
        )
        for row in classes[:MOST_CLASSES]
    ]
    if (more := len(classes) - len(rows)) > 0:
        rows.append((f"... {more} more in {elsewhere}", "", "", "", ""))
    head = (f"{where}: class", "precision", "recall", "f1", "examples")
    return markdown_table(head, rows, align="lrrrr") if rows else ""


def confusion_table(classes: Sequence[dict[str, Any]], matrix: list[list[int]] | None) -> str:
    """Writes in Markdown what `confusion` returned; empty where there is none, or one of too many classes."""
    if matrix is None or len(matrix) > MOST_CLASSES:
        return ""
    names = [plain(short(row["label"], 24)) for row in classes]
    rows = [(name, *(f"{count:,}" for count in counts)) for name, counts in zip(names, matrix, strict=True)]
    return markdown_table(("right, in rows; predicted:", *names), rows, align="l" + "r" * len(names))


def class_tables(where: str, classes: Sequence[dict[str, Any]], matrix: list[list[int]] | None, elsewhere: str) -> str:
    """Both tables, in Markdown; see `class_table`."""
    return f"{class_table(where, classes, elsewhere)}\n\n{confusion_table(classes, matrix)}"


def short(text: str, length: int) -> str:
    """Text of one line, cut to a length."""
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"
