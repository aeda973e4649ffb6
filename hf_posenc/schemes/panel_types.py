"""The contents of a plot as numbers and words: `Lines`, `Maps` and `Note`; and one `Effect` of a scheme."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

DEFAULT_POSITIONS = 128
"""Positions shown when the caller doesn't say: each is a pixel or two at the width of a page."""
DISTANCE = "distance j - i (tokens)"


@dataclass(frozen=True, eq=False, kw_only=True)
class Lines:
    """Curves over one axis."""

    title: str
    x: np.ndarray
    """(N,)"""
    y: np.ndarray
    """(n, N), a row for each curve; NaN where it has no value."""
    names: tuple[str, ...]
    """One for each curve."""
    group: str = ""
    """What the names count, such as `head`, for a colour bar instead of a legend. Empty: a legend."""
    x_label: str = DISTANCE
    y_label: str
    limits: tuple[float | None, float | None] = (None, None)
    """Of the y axis; None: by the numbers."""
    log: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Maps:
    """Heat maps that share one colour scale; row 0 is at the top."""

    title: str
    values: np.ndarray
    """(n, rows, columns)"""
    names: tuple[str, ...] = ("",)
    """One for each map."""
    x_label: str = DISTANCE
    y_label: str
    value_label: str
    limits: tuple[float, float]
    """Of the colours."""
    x_start: float = 0
    """What the first column is."""
    y_start: float = 0
    y_names: tuple[str, ...] = ()
    """Names of the rows, where their numbers say nothing."""
    x_names: tuple[str, ...] = ()
    """The same for the columns."""


@dataclass(frozen=True)
class Note:
    """Text in place of a plot."""

    title: str
    text: str


Panel = Lines | Maps | Note


@dataclass(frozen=True)
class Effect:
    """One way in which a scheme acts: all its panels, and the two that stand in a comparison."""

    kind: str
    """`embeddings`, `queries`, `rotation`, `appended`, `bias` or `layer bias`."""
    panels: tuple[Panel, ...]
    matrix: Maps | None
    """Positions against positions, one map."""
    profile: Lines | None
    """Against the signed distance."""


def signed_distances(length: int) -> np.ndarray:
    """The distances between any two of `length` positions: -(S - 1) to S - 1."""
    return np.arange(-(length - 1), length)


def curves(title: str, x: np.ndarray, values: Tensor | np.ndarray, names: Iterable[object], **words: Any) -> Lines:
    """The rows of (n, N) as curves over x (N,); `words` are further fields of `Lines`."""
    return Lines(title=title, x=x, y=to_numpy(values), names=tuple(map(str, names)), **words)


def from_three_positions(title: str, values: Tensor, **words: Any) -> Lines:
    """Values (S, S) against distance, from the first, the middle and the last position."""
    length = len(values)
    queries = sorted({round(step * (length - 1) / 2) for step in range(3)})
    rows = values.new_full((len(queries), 2 * length - 1), torch.nan)
    for row, query in zip(rows, queries, strict=True):
        row[length - 1 - query : 2 * length - 1 - query] = values[query]
    return curves(title, signed_distances(length), rows, queries, group="from position i", **words)


def pair_map(
    title: str, values: Tensor | np.ndarray, value_label: str, limits: tuple[float, float], logits: bool = False
) -> Maps:
    """One map of all pairs of positions, (S, S); of logits, of queries and keys."""
    x_label, y_label = ("key position j", "query position i") if logits else ("position", "position")
    return Maps(
        title=title,
        values=to_numpy(values)[None],
        x_label=x_label,
        y_label=y_label,
        value_label=value_label,
        limits=limits,
    )


def colour_limits(values: Tensor) -> tuple[float, float]:
    """Colour limits: symmetric about 0 for numbers of both signs, from 0 for those of one."""
    low, high = float(values.min()), float(values.max())
    if low < 0 < high:
        bound = max(-low, high)
        return -bound, bound
    return min(low, 0.0), max(high, 0.0)


def to_numpy(values: Tensor | np.ndarray) -> np.ndarray:
    """The same numbers, those of a tensor in float64 and without its graph."""
    return values.detach().double().numpy() if isinstance(values, Tensor) else values


def short_number(number: float) -> str:
    """At most three digits: 3.2, 31, 12.3k."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= 10 * size or (unit == "M" and number >= size):
            return f"{number / size:.3g}{unit}"
    return f"{number:.1f}" if number < 20 else f"{number:.0f}"
