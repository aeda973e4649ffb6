"""Training data that is read while training, `--streaming`: for data that doesn't fit into memory or on the disk.

What is held in memory doesn't grow with the training data: `shuffle_buffer_size` rows to draw from; a block of the
reader (a line of a .jsonl, a row group of a .parquet); `SAMPLE` rows to look at; the distinct labels, at most
`MOST_LABELS`, or 8 bytes for each number of a regression; the distinct words of `TOKENIZER_ROWS` rows where a tokenizer
is trained; and the validation and test examples, which `max_eval_samples` and `max_predict_samples` limit, at most
`HELD_OUT` where they are set aside from the training data.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from datasets import Dataset, IterableDataset

from ..errors import UserError
from .cells import as_written, is_missing
from .columns import Columns
from .reading import RowFile, require_same_columns
from .splitting import HoldOut, marks_of
from .table import Row, Table, Tally, classes_of

SHUFFLE_BUFFER = 10_000
"""Default of `shuffle_buffer_size`."""
SAMPLE = 1000
"""How many first rows are kept to find columns and to warn of truncation."""
HELD_OUT = 10_000
"""Most rows to set aside for validation, unless `max_eval_samples` says so."""
TOKENIZER_ROWS = 100_000
"""How many first rows a tokenizer is trained on."""
MOST_LABELS = 10_000
BATCH = 256


@dataclass(frozen=True)
class Stream:
    """Rows that are read anew each time, in order, and never all held in memory."""

    source: str
    read: Callable[[], Iterator[Row]]
    unit: str = "row"
    is_text: bool = False
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """The columns, where they are known before a row is read."""
    tally: Tally = field(default_factory=Tally)
    """What readers of its files have counted before."""

    @classmethod
    def of_files(cls, files: Sequence[RowFile]) -> "Stream":
        """The rows of a file, or of its shards one after the other."""
        require_same_columns(files)
        first, tally = files[0], Tally()
        for file in files:
            tally.add(file.tally or Tally())

        def read() -> Iterator[Row]:
            for file in files:
                name = str(file.path) if len(files) > 1 else ""
                yield from (row._replace(file=name) for row in file.rows()) if name else file.rows()

        source = ", ".join(str(file.path) for file in files[:3]) + ", ..." * (len(files) > 3)
        return cls(source, read, first.unit, first.is_text, first.classes, first.names, tally)

    @classmethod
    def of_dataset(cls, source: str, dataset: Dataset | IterableDataset) -> "Stream":
        """A data set of the library datasets, of the Hub or saved."""

        def read() -> Iterator[Row]:
            yield from (Row(number, cells) for number, cells in enumerate(dataset, start=1))

        return cls(source, read, classes=classes_of(dataset.features), names=tuple(dataset.column_names or ()))

    def taking(self, most: int | None) -> "Stream":
        """The first rows alone."""
        return self if most is None else replace(self, read=lambda: islice(self.read(), most))

    def only(self, wanted: Callable[[dict[str, Any]], bool]) -> "Stream":
        """The rows that fulfil a condition."""
        return replace(self, read=lambda: (row for row in self.read() if wanted(row.cells)))

    def table(self, most: int | None, split: str) -> Table:
        """The first rows, or all, in memory.

        Raises:
            UserError: it has none, or can't be read.
        """
        fields = {"unit": self.unit, "is_text": self.is_text, "classes": self.classes}
        tally = Tally()
        table = Table.of_rows(self.source, islice(self.read(), most), tally, self.names, **fields)
        tally.rows = len(table)
        if not len(table):
            raise UserError(f"The {split} data ({self.source}) has no rows. Give data with at least one example.")
        return table

    def batches(self, names: Sequence[str], size: int = BATCH) -> Iterator[dict[str, list[Any]]]:
        """The cells of some columns, so many rows at a time."""
        rows = self.read()
        while cells := [row.cells for row in islice(rows, size)]:
            yield {name: [row.get(name) for row in cells] for name in names}


class FirstReading:
    """What one pass over a stream finds before training: its labels, its length, and rows to validate on.

    Args:
        stream: the training rows.
        columns: where text and label are.
        hold_out: is given the number of each row, and the row; None: no row is set aside.
        task: `--task`.
        is_whole: whether a row is used. None: all are.
        watched: the marks of texts to look out for.
    """

    def __init__(
        self,
        stream: Stream,
        columns: Columns,
        hold_out: HoldOut | None,
        task: str | None,
        is_whole: Callable[[dict[str, Any]], bool] | None = None,
        watched: Set[int] = frozenset(),
    ) -> None:
        self.count = self.left_out = self.without_text = 0
        self.met: set[int] = set()
        """The watched marks that were met."""
        self._single: dict[Any, None] = {}
        self._listed: dict[Any, None] = {}
        self._column, self._delimiter, self._task = columns.label, columns.label_delimiter, task
        self._is_text, self._are_numbers = stream.is_text, False
        for row in stream.read():
            if is_whole is not None and not is_whole(row.cells):
                self.left_out += 1
                continue
            if not columns.one_hot:
                self._add(row.cells.get(columns.label), row.where(stream.unit))
            self.without_text += all(is_missing(row.cells.get(name)) for name in columns.text)
            if hold_out is not None or watched:
                (mark,) = marks_of(*columns.texts({name: [row.cells.get(name)] for name in columns.text}))
                if mark in watched:
                    self.met.add(mark)
                if hold_out is not None:
                    hold_out.add(mark, (self.count, row))
            self.count += 1

    def _add(self, cell: Any, where: str) -> None:
        if self._delimiter is not None and (cell is None or isinstance(cell, str)):
            parts = (part.strip() for part in (cell or "").split(self._delimiter))
            self._listed.update(dict.fromkeys(part for part in parts if part))
        elif is_missing(cell):
            raise UserError(
                f"Missing label in the train data: {where} has none in column {self._column!r}. Fill it in, or leave "
                "such rows out with --skip-missing."
            )
        elif isinstance(cell, list | tuple):
            self._listed.update(dict.fromkeys(cell))
        elif isinstance(cell, dict):
            raise UserError(f"Column {self._column!r} has {cell!r:.60} in {where}, which is no label.")
        elif not self._are_numbers:
            self._single[cell] = None
            if len(self._single) > MOST_LABELS:
                self._require_numbers()
        if len(self._listed) > MOST_LABELS:
            self._require_numbers()

    def _require_numbers(self) -> None:
        cells = as_written(list(self._single)) if self._is_text else list(self._single)
        numbers = not self._listed and self._task != "classification" and any(isinstance(cell, float) for cell in cells)
        if not numbers or not all(isinstance(cell, int | float) for cell in cells):
            raise UserError(
                f"Column {self._column!r} has more than {MOST_LABELS} different labels. Name the right column with "
                "--label-column-name, or predict a number with --task regression."
            )
        self._are_numbers = True

    def labels(self) -> list[Any]:
        """Cells of the label column that hold each label; twice, if each has several texts on average."""
        listed = list(self._listed) if self._delimiter is not None else [[label] for label in self._listed]
        distinct = [*self._single, *listed]
        return distinct * (2 if self.count >= 2 * len(distinct) else 1)


def shuffled(rows: Iterable[Any], size: int, seed: str) -> Iterator[Any]:
    """Draws from a buffer of so many rows; size 1 keeps the order."""
    if size <= 1:
        yield from rows
        return
    draw = random.Random(seed)
    waiting: list[Any] = []
    for row in rows:
        if len(waiting) < size:
            waiting.append(row)
            continue
        chosen = draw.randrange(size)
        yield waiting[chosen]
        waiting[chosen] = row
    draw.shuffle(waiting)
    yield from waiting
