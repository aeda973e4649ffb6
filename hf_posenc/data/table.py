"""Rows: a `Stream` reads them anew each time, a `Table` holds them in memory; a `Tally` counts what was read."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from datasets import ClassLabel, Dataset, List

from ..errors import UserError


class Row(NamedTuple):
    """One row of a file."""

    place: int
    """The number of its (first) line in a text file, counted from 1; elsewhere of the row."""
    cells: dict[str, Any]


@dataclass
class Tally:
    """What a reader met in the files of a split."""

    lines: int = 0
    """Lines of text; 0 for files that have none."""
    rows: int = 0
    joined: int = 0
    """Rows that run over several lines, inside quotes."""
    blank: int = 0
    """Empty lines, which are no rows."""
    notes: list[str] = field(default_factory=list)
    """What was decided for this file, each a sentence."""

    def add(self, other: "Tally") -> None:
        """Counts the next file."""
        self.lines += other.lines
        self.rows += other.rows
        self.joined += other.joined
        self.blank += other.blank
        self.notes += other.notes

    def __str__(self) -> str:
        of_lines = f" from {counted(self.lines, 'line')}" if self.lines else ""
        extra = [f"{self.joined:,} of them over several lines"] * bool(self.joined)
        extra += [f"{counted(self.blank, 'empty line')} skipped"] * bool(self.blank)
        return f"{counted(self.rows, 'row')}{of_lines}" + (f" ({', '.join(extra)})" if extra else "")


def counted(count: int, what: str) -> str:
    """A number of things: 1 row, 2 rows."""
    return f"{count:,} {what}{'s' * (count != 1)}"


@dataclass(frozen=True)
class Table:
    """The rows of one split, column by column."""

    source: str
    """What messages call it: the file, or the data set."""
    columns: Mapping[str, Sequence[Any]]
    """The cells of each column. Those of a data set of the Hub are read from the disk when they are used."""
    places: Sequence[int] | None = None
    """Where each row stands (see `Row`); None: the first is row 1."""
    unit: str = "row"
    """What the places count: line or row."""
    is_text: bool = False
    """Whether all cells are strings that may mean numbers, as in a .csv."""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names behind the numbers of a column, where the data set declares them."""
    tally: Tally = field(default_factory=Tally, compare=False)
    files: tuple[tuple[int, str], ...] = ()
    """Of several files: the index of the first row of each, and its name."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self.columns)

    def place(self, index: int) -> int:
        """Where a row stands: the number of its line, or of its row."""
        return index + 1 if self.places is None else self.places[index]

    def where(self, index: int) -> str:
        """The same in words: `line 5`."""
        file = ""
        if self.files:
            file = self.files[bisect_right(self.files, (index, "\uffff")) - 1][1] + ", "
        return f"{file}{self.unit} {self.place(index)}"

    def row(self, index: int) -> dict[str, Any]:
        """The cells of a row by column."""
        return {name: cells[index] for name, cells in self.columns.items()}

    def select(self, rows: Sequence[int]) -> Self:
        """These rows, in this order."""
        chosen = {name: [cells[row] for row in rows] for name, cells in self.columns.items()}
        # A row keeps its place, but of several files the number alone wouldn't say which.
        return replace(self, columns=chosen, places=[self.place(row) for row in rows], files=())

    def first(self, most: int | None) -> Self:
        """The first rows."""
        return self if most is None or most >= len(self) else self.select(range(most))

    def require_rows(self) -> Self:
        """The table; raises a UserError if it has no rows."""
        if not len(self):
            raise UserError(f"{self.source!r} has no rows. Give data with at least one example.")
        return self

    @classmethod
    def of_dataset(cls, source: str, dataset: Dataset) -> Self:
        """A data set of the library datasets, whose columns stay on the disk."""
        columns: dict[str, Any] = {name: dataset[name] for name in dataset.column_names}
        tally = Tally(rows=len(dataset))
        return cls(source, columns, classes=classes_of(dataset.features), tally=tally)


def classes_of(features: Any) -> dict[str, tuple[str, ...]]:
    """The names that a data set declares for the numbers of its columns, or of the lists in them."""
    classes = {}
    for name, feature in (features or {}).items():
        inner = feature.feature if isinstance(feature, List) else feature
        if isinstance(inner, ClassLabel):
            classes[name] = tuple(inner.names)
    return classes


def concatenate(tables: Sequence[Table], source: str) -> Table:
    """Tables one after the other; a row whose table lacks a column has None there."""
    first, tally = tables[0], Tally()
    starts, count = [], 0
    for table in tables:
        tally.add(table.tally)
        starts.append((count, table.source))
        count += len(table)
    names = dict.fromkeys(name for table in tables for name in table.columns)
    columns = {
        name: [cell for table in tables for cell in table.columns.get(name, [None] * len(table))] for name in names
    }
    places = [table.place(row) for table in tables for row in range(len(table))]
    return replace(first, source=source, columns=columns, places=places, tally=tally, files=tuple(starts))


@dataclass(frozen=True)
class Stream:
    """The rows of a file or of standard input, which are read anew each time, in order."""

    source: str
    """What messages call it."""
    read: Callable[[Tally], Iterator[Row]]
    """Yields the rows, from the first on, and counts them."""
    unit: str = "row"
    delimiter: str | None = None
    """Of a .csv or .tsv, whose cells are strings that may mean numbers."""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """The columns, where they are known before a row is read."""
    load: Callable[[], Table] | None = None
    """Reads all rows into memory, where there is a faster way than one by one."""

    def table(self) -> Table:
        """All rows in memory.

        Raises:
            UserError: it has none, or can't be read.
        """
        if self.load is not None:
            return self.load().require_rows()
        tally = Tally()
        return self.collect(self.read(tally), tally).require_rows()

    def collect(self, rows: Iterable[Row], tally: Tally) -> Table:
        """Some of its rows in memory; one that lacks a column has None there."""
        columns: dict[str, list[Any]] = {name: [] for name in self.names}
        places: list[int] = []
        for place, cells in rows:
            for name in cells:
                if name not in columns:
                    columns[name] = [None] * len(places)
            for name, values in columns.items():
                values.append(cells.get(name))
            places.append(place)
        return Table(self.source, columns, places, self.unit, self.delimiter is not None, self.classes, tally)
