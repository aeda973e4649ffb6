"""Training data that is read while training, `--streaming`: for data that doesn't fit into memory or on the disk.

What is held in memory doesn't grow with the training data: `shuffle_buffer_size` rows to draw from; a block of the
reader (a line of a .jsonl, a row group of a .parquet); `SAMPLE` rows to look at; the distinct labels, at most
`MOST_LABELS`, or 8 bytes for each number of a regression; the distinct words of `TOKENIZER_ROWS` rows where a tokenizer
is trained; and the validation and test examples, which `max_eval_samples` and `max_predict_samples` limit, at most
`HELD_OUT` where they are set aside from the training data.
"""

import heapq
from collections.abc import Set
from typing import Any

from ..errors import UserError
from .cells import as_written, is_missing
from .columns import Columns
from .label_cells import parts_of
from .labels import missing_label
from .options import DataArguments
from .splitting import mark_of
from .table import Row, Stream

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


class SmallestMarks:
    """The rows of the texts with the least marks, as many as may be kept.

    Args:
        most: how many rows.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._rows: dict[int, list[tuple[int, Row]]] = {}
        """Of each text, by its mark, with their numbers."""
        self._marks: list[int] = []
        """A heap of the marks, the largest first, negative."""
        self._bound = 2**64
        """Texts from this mark on aren't kept."""
        self._kept = 0

    def add(self, mark: int, number: int, row: Row) -> None:
        """Adds the next row."""
        if mark >= self._bound:
            return
        if mark not in self._rows:
            self._rows[mark] = []
            heapq.heappush(self._marks, -mark)
        self._rows[mark].append((number, row))
        self._kept += 1
        while self._kept > self.most and len(self._marks) > 1:
            self._bound = -heapq.heappop(self._marks)
            self._kept -= len(self._rows.pop(self._bound))

    def rows(self) -> list[Row]:
        """Those that are kept, in order."""
        return [row for _, row in sorted(row for rows in self._rows.values() for row in rows)]


def mark_of_row(row: Row, columns: Columns) -> int:
    """The mark of its text."""
    return mark_of(*columns.text_of(row.cells))


class FirstReading:
    """What one pass over a stream finds before training: its labels, its length, and rows to validate on.

    Args:
        stream: the training rows.
        columns: where text and label are.
        data: the options.
        most_held: how many rows to validate on may be kept; 0: none is set aside.
        watched: the marks of texts to look out for.
    """

    def __init__(
        self, stream: Stream, columns: Columns, data: DataArguments, most_held: int, watched: Set[int]
    ) -> None:
        self.count = self.left_out = self.without_text = 0
        self.candidates = SmallestMarks(most_held)
        """The rows that may be validated on."""
        self.seen_marks: set[int] = set()
        """The watched marks that were met."""
        self._single: dict[Any, None] = {}
        self._listed: dict[Any, None] = {}
        self._stream, self._columns, self._task = stream, columns, data.task
        self._are_numbers = False
        for row in stream.rows():
            if data.skip_missing and not columns.is_complete(row.cells):
                self.left_out += 1
                continue
            if not columns.one_hot:
                self._add_label(row)
            self.without_text += all(is_missing(row.cells.get(name)) for name in columns.text)
            if most_held or watched:
                mark = mark_of_row(row, columns)
                if mark in watched:
                    self.seen_marks.add(mark)
                if most_held:
                    self.candidates.add(mark, self.count, row)
            self.count += 1

    def _add_label(self, row: Row) -> None:
        column, delimiter = self._columns.label, self._columns.label_delimiter
        cell = row.cells.get(column)
        if delimiter is not None:
            cell = parts_of(cell, delimiter)
        if isinstance(cell, list | tuple):
            self._listed.update(dict.fromkeys(cell))
        elif is_missing(cell):
            raise missing_label("train", row.where(self._stream.unit), column)
        elif isinstance(cell, dict):
            where = row.where(self._stream.unit)
            raise UserError(f"Column {column!r} has {cell!r:.60} in {where}, which is no label.")
        elif not self._are_numbers:
            self._single[cell] = None
        if len(self._listed) > MOST_LABELS or (len(self._single) > MOST_LABELS and not self._are_numbers):
            self._require_numbers()

    def _require_numbers(self) -> None:
        cells = list(self._single)
        if self._stream.delimiter is not None:
            cells = as_written(cells)
        numbers = not self._listed and self._task != "classification" and any(isinstance(cell, float) for cell in cells)
        if not numbers or not all(isinstance(cell, int | float) for cell in cells):
            raise UserError(
                f"Column {self._columns.label!r} has more than {MOST_LABELS} different labels. Name the right column "
                "with --label-column-name, or predict a number with --task regression."
            )
        self._are_numbers = True

    def labels(self) -> list[Any]:
        """Cells of the label column that hold each label; twice, if each has several texts on average."""
        distinct = [*self._single, *([label] for label in self._listed)]
        return distinct * (2 if self.count >= 2 * len(distinct) else 1)
