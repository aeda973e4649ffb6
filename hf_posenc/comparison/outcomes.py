"""What a model did with each test example, small enough to be kept: from it follow the metric and its intervals.

An outcome has a row for each unit (an example, or a group of examples that belong together) and a column for each
count. The metric is a function of the columns' sums, so that resampling is a product with weights.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_BOUNDS = {"accuracy": (0.0, 1.0), "matthews_correlation": (-1.0, 1.0)}
"""The metrics, and the least and the greatest value of each."""
_SAME = "x"
MOST_UNITS = 1_000_000
"""Units of a test, at most: the bootstrap holds 2,000 weights for each."""
_LARGEST = 1e15
_EXACT = 2**24
"""Whole numbers up to this are float32 numbers."""


@dataclass(frozen=True)
class Outcome:
    """Counts of the units of one test."""

    metric: str
    columns: tuple[str, ...]
    """`right` and `of` or, for a correlation, the cells `label>prediction` that occur."""
    units: np.ndarray
    """(U, k): k counts of U units."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest value that the metric can have."""
        return _BOUNDS[self.metric]

    def value(self) -> float:
        """The metric over all units."""
        return float(self.scores(np.ones((1, len(self.units))))[0])

    def scores(self, weights: np.ndarray) -> np.ndarray:
        """The metric with weighted units: (B, U) -> (B,)."""
        return self.metric_of(weighted_sums(weights, self.units))

    def metric_of(self, sums: np.ndarray) -> np.ndarray:
        """The metric from the sums of the counts: (B, k) -> (B,)."""
        return sums[:, 0] / sums[:, 1] if self.metric == "accuracy" else _matthews(sums, self.columns)

    def to_dict(self) -> dict[str, str]:
        """A string for each column: the units' counts, run-length encoded (`1x400`: 400 times 1)."""
        return {name: _encode(self.units[:, index]) for index, name in enumerate(self.columns)}


def weighted_sums(weights: np.ndarray, units: np.ndarray) -> np.ndarray:
    """The counts' sums over weighted units, float64: (B, U), (U, k) -> (B, k).

    Small whole numbers have the same sums in float32, in a fraction of the time.
    """
    if weights.dtype == np.float32 and len(units) * units.max(initial=0) < _EXACT and (units == np.rint(units)).all():
        return (weights @ units.astype(np.float32)).astype(np.float64)
    return weights @ units


def from_dict(metric: str, columns: dict[str, str]) -> Outcome:
    """Reads what `to_dict` wrote; its columns may stand in any order.

    Raises:
        ValueError: the metric or a column is unknown, a column is missing or shorter than another, or a count can't be.
    """
    if metric not in _BOUNDS:
        raise ValueError(f"the metric {metric!r:.40} is unknown")
    names = ("right", "of") if metric == "accuracy" else tuple(columns)
    if set(names) != set(columns) or not columns:
        raise ValueError(f"the {metric} has the columns {', '.join(map(repr, columns)):.80}")
    if metric != "accuracy" and not all(re.fullmatch(r"\d{1,4}>\d{1,4}", name) for name in names):
        raise ValueError(f"the {metric} has a column that is no pair of classes: {', '.join(map(repr, columns)):.80}")
    decoded = [_decode(columns[name]) for name in names]
    if len({len(column) for column in decoded}) > 1 or not len(decoded[0]):
        raise ValueError(f"the columns of the {metric} have {', '.join(str(len(column)) for column in decoded)} units")
    units = np.stack(decoded, axis=1)
    if not (np.abs(units) < _LARGEST).all():
        raise ValueError(f"the {metric} has a number that isn't finite, or is too large")
    if units.min() < 0 or units.sum() <= 0:
        raise ValueError(f"the {metric} has negative counts, or none")
    if metric == "accuracy" and not ((units[:, 0] <= units[:, 1]) & (units[:, 1] > 0)).all():
        raise ValueError("the accuracy has more right answers than examples")
    return Outcome(metric, names, units)


def _encode(values: np.ndarray) -> str:
    words = [f"{value:.6g}" for value in values]
    return f"{words[0]}{_SAME}{len(words)}" if len(set(words)) == 1 else " ".join(words)


def _decode(text: str) -> np.ndarray:
    if _SAME in text:
        value, count = text.split(_SAME)
        if not 0 < int(count) <= MOST_UNITS:
            raise ValueError(f"{text!r:.40} isn't 1 to {MOST_UNITS:,} units")
        return np.full(int(count), float(value))
    words = text.split()
    values = {word: float(word) for word in set(words)}  # few, of many words
    return np.fromiter(map(values.__getitem__, words), np.float64, len(words))


def right_outcome(right: np.ndarray, groups: Sequence[Any] | None = None) -> Outcome:
    """An outcome from correct answers: a bool for each example (n,)."""
    columns = np.stack([right.astype(np.float64), np.ones(len(right))], axis=1)
    return Outcome("accuracy", ("right", "of"), _grouped(columns, groups))


def classification_outcome(
    metric: str, labels: np.ndarray, predictions: np.ndarray, classes: int, groups: Sequence[Any] | None = None
) -> Outcome:
    """Labels and predictions (n,) of examples, for `accuracy` or `matthews_correlation`."""
    if metric == "accuracy":
        return right_outcome(predictions == labels, groups)
    codes = labels.astype(np.int64) * classes + predictions
    present = np.unique(codes)
    names = tuple(f"{code // classes}>{code % classes}" for code in present)
    return Outcome(metric, names, _grouped((codes[:, None] == present[None]).astype(np.float64), groups))


def _grouped(columns: np.ndarray, groups: Sequence[Any] | None) -> np.ndarray:
    if groups is None:
        return columns
    numbers: dict[Any, int] = {}
    index = np.array([numbers.setdefault(group, len(numbers)) for group in groups])
    summed = np.zeros((len(numbers), columns.shape[1]))
    np.add.at(summed, index, columns)
    return summed


def _matthews(sums: np.ndarray, columns: tuple[str, ...]) -> np.ndarray:
    """R_K of the sums of the cells (Gorodkin 2004): (B, k) -> (B,), 0 where labels or predictions don't vary."""
    cells = np.array([name.split(">") for name in columns], dtype=np.int64)  # (k, 2)
    label, prediction = (sums @ np.eye(1 + cells.max())[numbers] for numbers in cells.T)  # (B, C) each
    right, total = sums[:, cells[:, 0] == cells[:, 1]].sum(1), sums.sum(1)
    covariance = right * total - (label * prediction).sum(1)
    spread = (total**2 - (label**2).sum(1)) * (total**2 - (prediction**2).sum(1))
    return np.where(spread > 0, covariance / np.sqrt(np.maximum(spread, 1e-300)), 0.0)
