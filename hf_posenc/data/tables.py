"""Rows as they were read, and where each stands in its file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, LargeList, List

from ..errors import UserError, readable, spell

LINE = "__line__"
"""The column that says where a row stands."""
_SHOWN = 3
"""So many places are named in one sentence."""
_LISTED = 20
"""So many labels or texts are."""


@dataclass(frozen=True)
class Table:
    """Rows of a file, of a data set or in memory, as they were read.

    Attributes:
        rows: the columns, in types that `datasets` has, and `__line__`, where each row stands.
        name: what messages call them.
        kind: the suffix of the file; of others `datasets`.
        summary: how many they are, in words.
    """

    rows: Dataset
    name: str
    kind: str
    summary: str

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def names(self) -> list[str]:
        """The columns of the file."""
        return [name for name in self.rows.column_names if name != LINE]

    def cells(self, column: str) -> list[Any]:
        """The cells of a column, as Python's values.

        Raises:
            UserError: it holds pictures, sounds or the like, or a damaged text.
        """
        if (kind := _media(self.rows.features[column])) is not None:
            raise UserError(f"Column {column!r} holds {kind}, which is no text and no label. Name another.")
        with readable(f"{self.name}: column {column!r}", "Write it anew, as UTF-8."):
            return self.rows[column][:]

    def classes(self, column: str) -> tuple[str, ...] | None:
        """The names that a data set declares for the numbers of a column, or of the lists in it."""
        feature = self.rows.features.get(column)
        inner = feature.feature if isinstance(feature, List | LargeList) else feature
        return tuple(inner.names) if isinstance(inner, ClassLabel) else None

    def select(self, rows: Sequence[int]) -> "Table":
        """Some of the rows of what was read."""
        return replace(self, rows=self.rows.select(rows))

    def where(self, row: int) -> str:
        """Where a row stands, in words: `line 5`."""
        return self.places([row])

    def places(self, rows: Sequence[int]) -> str:
        """Where rows stand, in words: `line 5`, `lines 5, 7 and 9`, of many the first three."""
        return self.at(self.rows.select(rows[:_SHOWN])[LINE][:], len(rows))

    def at(self, lines: Sequence[int], count: int) -> str:
        """Some lines in words, or rows where there are no lines, and how many there are more.

        Args:
            lines: the first ones, at most three.
            count: of all.
        """
        word = "row" if self.kind in ("json", "datasets") else "line"
        if not count:
            return f"no {word}"
        numbers = [str(line) for line in lines]
        if count > len(numbers):
            numbers.append(f"{count - len(numbers):,} more")
        return f"{word}{'s' * (count > 1)} {' and '.join(filter(None, [', '.join(numbers[:-1]), numbers[-1]]))}"

    def refuse_missing(self, split: str, rows: Sequence[int], what: str, lacks: str) -> None:
        """Raises a UserError if rows lack something; the message names the first one."""
        if rows:
            place = f"{self.where(rows[0])} has {lacks} ({counted(len(rows), 'row')} in all)"
            way_out = f"Fill it in, or leave such rows out with {spell('skip_missing', True)}."
            raise UserError(f"Missing {what} in the {split} data: {place}. {way_out}")


def as_table(rows: Dataset, name: str, kind: str = "datasets", places: Sequence[int] = (), lines: int = 0) -> Table:
    """A data set as a table; a format that it was saved with goes.

    Args:
        rows: of the data.
        name: what messages call them.
        kind: the suffix of the file.
        places: where its rows stand; none: they are numbered.
        lines: how many its file has, where that is one of lines.

    Raises:
        UserError: there are no rows, or there is a column `__line__`.
    """
    if not len(rows):
        raise UserError(f"{name!r} has no rows. Give data with at least one example.")
    rows = rows.with_format(None)  # all columns, whichever a data set was saved with
    if LINE in rows.column_names:
        raise UserError(f"{name!r} has a column {LINE!r}, which is where rows are numbered. Rename it.")
    rows = rows.add_column(LINE, np.asarray(places or range(len(rows))))
    summary = counted(len(rows), "row") + (f" from {counted(lines, 'line')}" if lines else "")
    return Table(rows, name, kind, summary)


def _media(feature: Any) -> str | None:
    """Name that `datasets` has for what a column decodes files to; None: it decodes none."""
    if isinstance(feature, List | LargeList):
        return _media(feature.feature)
    if isinstance(feature, dict):
        return next(filter(None, map(_media, feature.values())), None)
    kind = type(feature).__name__
    return kind if hasattr(feature, "decode") and kind != "Json" else None  # whose values are strings and the like


def listed(entries: Sequence[str]) -> str:
    """Entries in a sentence: the first 20, and how many more there are."""
    more = [f"and {len(entries) - _LISTED:,} more"] if len(entries) > _LISTED else []
    return "; ".join([*entries[:_LISTED], *more])


def counted(count: int, what: str) -> str:
    """A number of things: `1 row`, `2,000 rows`."""
    return f"{count:,} {what}{'s' * (count != 1)}"
