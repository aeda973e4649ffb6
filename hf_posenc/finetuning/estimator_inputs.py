"""Checks the texts and labels that an estimator is given."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pandas import isna
from pandas.api.types import is_scalar

from ..data.columns import Columns, as_input
from ..errors import UserError

_TEXTS = ("text", "text_pair")


def checked_columns(texts: Any, labels: Any) -> dict[str, list[str]]:
    """The columns of the texts that a model is to be trained on."""
    labels = require_labels(labels)
    columns = text_columns(texts)
    if len(labels) != len(columns["text"]):
        raise UserError(f"{len(columns['text'])} texts have {len(labels)} labels. Give one label for each text.")
    return columns


def require_labels(labels: Any) -> Any:
    """The labels as a sequence. Refuses missing ones, in words that scikit-learn's own estimators have."""
    if labels is None:
        raise UserError("requires y to be passed, but the target y is None")
    rows = labels if isinstance(labels, Sequence) else np.asarray(labels)
    if isinstance(labels, str | bytes) or (isinstance(rows, np.ndarray) and rows.ndim == 0):
        raise UserError(f"y is one value, {str(labels)[:40]!r}. Give a list with one label for each text.")
    for number, row in enumerate(rows):
        if np.any(isna(row if is_scalar(row) else np.asarray(row, dtype=object))):
            raise UserError(f"Input contains NaN or None: the label of text {number}. Leave texts without a label out.")
    return labels if hasattr(labels, "__len__") else rows


def is_lists(labels: Any) -> bool:
    """Whether labels are lists of names, one list per text, and no rows of 0 and 1."""
    if not isinstance(labels, Sequence) and not hasattr(labels, "iloc"):
        return False
    rows = list(labels)
    if not rows or not all(isinstance(row, list | tuple | set | frozenset) for row in rows):
        return False
    alike = len({len(row) for row in rows}) == 1 and len(rows[0]) > 1
    return not (alike and all(type(item) in (int, bool) and item in (0, 1) for row in rows for item in row))


def text_columns(texts: Any) -> dict[str, list[str]]:
    """Texts, or pairs of them, as one or two columns.

    Raises:
        UserError: there are none, or one is no string.
    """
    rows = _rows(texts, 2)
    columns = [tuple(map(str, rows))] if isinstance(rows[0], str) else list(zip(*rows, strict=True))
    return {name: [str(text) for text in column] for name, column in zip(_TEXTS, columns, strict=False)}


def inputs_of(texts: Any, known: Columns | None) -> list[tuple[str, ...]]:
    """Texts, or rows of them, as a trained model takes them; of a data frame the columns that it was trained on.

    Raises:
        UserError: there are none, or one is no string.
    """
    names = [] if known is None else list(known.text)
    if names and set(names) <= set(getattr(texts, "columns", ())):
        texts = texts[names if len(names) > 1 else names[0]]
    joined = known is not None and known.separator is not None
    rows = _rows(_filled(texts), len(names) if joined else 2, f" ({', '.join(names)})" if joined else "")
    return [as_input(row, known) for row in rows]


def _filled(texts: Any) -> Any:
    """Texts with an empty one in the place of each that is missing, as in a file."""
    if hasattr(texts, "fillna"):
        return texts.astype(object).fillna("")
    return texts


def _rows(texts: Any, width: int, names: str = "") -> list[Any]:
    """Strings, or rows of so many of them; refuses anything else, with the names of the columns."""
    if isinstance(texts, str):
        raise UserError(f"X is one string, {texts[:40]!r}. Give a list of texts: [{texts[:10]!r}...].")
    rows = texts.to_numpy().tolist() if hasattr(texts, "to_numpy") else list(texts)
    if not rows:
        raise UserError("X has no texts: 0 sample(s) (shape=(0,)) while a minimum of 1 is required.")
    rows = [row.tolist() if isinstance(row, np.ndarray) else row for row in rows]
    several = isinstance(rows[0], list | tuple)
    what = "pair of strings" if width == 2 else f"row of {width} strings"
    for number, row in enumerate(rows):
        if isinstance(row, str) and not several:
            continue
        if several and isinstance(row, list | tuple) and len(row) == width and all(isinstance(t, str) for t in row):
            continue
        raise UserError(f"Text {number} is {row!r:.60}. Give a string for each text, or for each a {what}{names}.")
    return rows
