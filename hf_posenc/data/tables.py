"""Rows as they were read, and where each stands in its file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from datasets import ClassLabel, Dataset, Features, LargeList, List

from ..errors import UserError, readable, spell

LINE = "__line__"
"""The column of a prepared split that says where a row stands."""
_SHOWN = 3
"""So many places are named in one sentence."""
_LISTED = 20
"""So many labels or texts are."""


@dataclass(frozen=True)
class Table:
    """Rows of a file, of a data set or in memory, as they were read.

    Attributes:
        rows: the columns, in their own types.
        name: what messages call them.
        kind: the suffix of the file; of others `datasets`.
        numbers: where each row stands: its line in the file, or its number.
        summary: how many they are, in words.
    """

    rows: pa.Table
    name: str
    kind: str
    numbers: Sequence[int]
    summary: str

    def __len__(self) -> int:
        """The number of rows."""
        return int(self.rows.num_rows)

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self.rows.column_names)

    def cells(self, column: str) -> list[Any]:
        """The cells of a column, as Python's values.

        Raises:
            UserError: it holds pictures, sounds or the like, or a damaged text.
        """
        feature = self._feature(column)
        if (kind := _media(feature)) is not None:
            raise UserError(f"Column {column!r} holds {kind}, which is no text and no label. Name another.")
        cells = self.rows.select([column])
        with readable(f"{self.name}: column {column!r}", "Write it anew, as UTF-8."):
            return list(cells[0].to_pylist() if feature is None else Dataset(cells)[column])

    def classes(self, column: str) -> tuple[str, ...] | None:
        """The names that a data set declares for the numbers of a column, or of the lists in it."""
        feature = self._feature(column)
        inner = feature.feature if isinstance(feature, List | LargeList) else feature
        return tuple(inner.names) if isinstance(inner, ClassLabel) else None

    def class_names(self, column: str) -> list[Any]:
        """The cells of a column; those of declared classes, or of lists of them, are names, or None for -1 (GLUE)."""
        names = self.classes(column)
        cells = self.cells(column)
        return cells if names is None else [_named(cell, names) for cell in cells]

    def _feature(self, column: str) -> Any:
        """The type that `datasets` has for a column; None: it has none, such as for a map."""
        schema = pa.schema([self.rows.schema.field(column)], self.rows.schema.metadata)
        try:
            return Features.from_arrow_schema(schema)[column]
        except ValueError:
            return None

    def select(self, rows: Sequence[int]) -> "Table":
        """Some of the rows of what was read."""
        return replace(self, rows=take_rows(self.rows, rows), numbers=[self.numbers[row] for row in rows])

    def where(self, row: int) -> str:
        """Where a row stands, in words: `line 5`."""
        return self.places([row])

    def places(self, rows: Sequence[int]) -> str:
        """Where rows stand, in words: `line 5`, `lines 5, 7 and 9`, of many the first three."""
        return self.at([self.numbers[row] for row in rows[:_SHOWN]], len(rows))

    def at(self, lines: Sequence[int], count: int) -> str:
        """Some lines in words, or rows where there are no lines, and how many there are more.

        Args:
            lines: the first ones, at most three.
            count: of all.
        """
        word = "row" if self.kind in ("json", "datasets") else "line"
        numbers = [str(line) for line in lines]
        if count > len(numbers):
            numbers.append(f"{count - len(numbers):,} more")
        return f"{word}{'s' * (count > 1)} {' and '.join(filter(None, [', '.join(numbers[:-1]), numbers[-1]]))}"

    def refuse_missing(self, split: str, rows: Sequence[int], what: str, lacks: str) -> None:
        """Raises a UserError if rows lack something; the message names the first one."""
        if rows:
            place = f"{self.where(rows[0])} has {lacks} ({counted(len(rows), 'row')} in all)"
            skip = f"leave such rows out with {spell('skip_missing', True)}"
            way_out = f"Fill it in, or {skip if len(rows) < len(self) else 'name another column'}."
            raise UserError(f"Missing {what} in the {split} data: {place}. {way_out}")


def as_table(
    rows: Dataset | pa.Table, name: str, kind: str = "datasets", numbers: Sequence[int] = (), lines: int = 0
) -> Table:
    """A data set, with all its columns, or an Arrow table as our table.

    Args:
        rows: of the data.
        name: what messages call them.
        kind: the suffix of the file.
        numbers: where its rows stand; none: they are counted from 0.
        lines: how many its file has, where that is one of lines.

    Raises:
        UserError: there are no rows, or two columns have one name.
    """
    if isinstance(rows, Dataset):
        rows = rows.with_format("arrow")[:]
    names = rows.column_names
    if len({*names}) < len(names):
        what = f"{name!r} can't be read: it has two columns {max(names, key=names.count)!r}"
        raise UserError(f"{what}. Give each column a name of its own.")
    if not rows.num_rows:
        raise UserError(f"{name!r} has no rows. Give data with at least one example.")
    summary = counted(rows.num_rows, "row") + (f" from {counted(lines, 'line')}" if lines else "")
    return Table(rows, name, kind, numbers or range(rows.num_rows), summary)


def take_rows(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    """Some of the rows, in this order; columns keep their types, also those that Arrow takes nothing from."""
    columns = []
    for column in rows.columns:
        try:
            columns.append(column.take(pa.array(places, pa.int64())))
        except pa.ArrowNotImplementedError:  # of string_view and binary_view
            columns.append(pa.array([column[place].as_py() for place in places], column.type))
    return pa.table(columns, schema=rows.schema)


def _named(cell: Any, names: Sequence[str]) -> Any:
    """The name of a class, or those of a list of classes; None where there is none, a number that isn't declared."""
    if isinstance(cell, list):
        return [_declared(part, names) for part in cell]
    return None if cell == -1 else _declared(cell, names)


def _declared(number: int | None, names: Sequence[str]) -> str | None:
    if number is None:
        return None
    return names[number] if 0 <= number < len(names) else str(number)  # which is refused with its row


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
