"""What a run trains and scores on: a frozen `PreparedData`, which `preparing.prepare` makes."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

from datasets import Dataset

from ..errors import UserError
from .columns import Columns, check_text
from .encoding import all_texts, encode_texts, encode_words
from .label_cells import read_labels
from .labels import TOKENS, Labels, apply_labels
from .splitting import marks_of
from .streaming import TOKENIZER_ROWS, Stream
from .summary import DataSummary
from .table import Table


@dataclass(frozen=True)
class Use:
    """What a run does with its data."""

    train: bool = True
    validate: bool = False
    """Score validation rows; without any, training rows are set aside."""
    test: bool = False
    """Label the test rows."""
    score_test: bool = False
    """Score the test rows, if there are any and they have labels."""
    labelled: bool = True
    """Whether labels are read; a masked language model has none."""
    known: Columns | None = None
    """The columns that a checkpoint was trained on."""
    label_names: Sequence[str] | None = None
    """The labels of a trained model, in order."""
    problem_type: str | None = None
    """Its task."""
    trained_on: frozenset[int] = frozenset()
    """The marks of the texts that it was trained on, where these are known."""


@dataclass(frozen=True)
class Part:
    """The rows of one split that are used."""

    texts: tuple[Sequence[Any], ...]
    """`(first,)`; for pairs `(first, second)`; of labelled words a list of words for each row."""
    labels: list[Any] | None
    """In the model's form; None: there are none."""
    rows: Sequence[int]
    """The index of each in its split."""
    places: Sequence[int]
    """Where each stands in its file: the number of its line, or of its row."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def marks(self) -> list[int]:
        """A number for each text, equal for equal texts."""
        return marks_of(all_texts(self.texts)) if len(self.texts) == 1 else marks_of(*self.texts)

    def select(self, chosen: Sequence[int]) -> "Part":
        """Some of these rows."""

        def of(values: Any) -> Any:
            return [values[row] for row in chosen]

        part = Part(
            tuple(of(column) for column in self.texts),
            None if self.labels is None else of(self.labels),
            of(self.rows),
            of(self.places),
        )
        if "marks" in self.__dict__:
            part.__dict__["marks"] = of(self.marks)
        return part


@dataclass(frozen=True)
class StreamedPart:
    """Training rows that are read while training."""

    stream: Stream
    columns: Columns
    labels: Labels
    decimal: str | None
    held: frozenset[int]
    """The marks of the texts that are set aside."""
    sample: Part
    """The first rows."""
    count: int | None
    """How many rows there are, if that's known."""

    def batches(self) -> Iterator[dict[str, list[Any]]]:
        """The cells of all rows that aren't set aside, some at a time."""
        names = (*self.columns.text, *self.columns.labels)
        for batch in self.stream.batches(names):
            if self.held:
                marks = marks_of(*self.columns.texts(batch))
                batch = {
                    name: [cell for cell, mark in zip(cells, marks, strict=True) if mark not in self.held]
                    for name, cells in batch.items()
                }
            if batch[names[0]]:
                yield batch

    def texts(self) -> Iterator[str]:
        """The first training texts, for a tokenizer to be trained on."""
        rows = (row for batch in self.batches() for row in zip(*filter(None, self.columns.texts(batch)), strict=True))
        for row in islice(rows, TOKENIZER_ROWS):
            yield from row

    def first(self, most: int, characters: float = math.inf) -> Part:
        """The first rows with their labels: at most so many, and no more when their texts have so many characters."""
        size = 0
        columns: dict[str, list[Any]] = {name: [] for name in (*self.columns.text, *self.columns.labels)}
        for batch in self.batches():
            for name, cells in batch.items():
                columns[name] += cells[: most - len(columns[name])]
            size += sum(len(str(cell)) for name in self.columns.text for cell in batch[name])
            if len(columns[self.columns.text[0]]) == most or size >= characters:
                break
        table = self._table(columns)
        texts = tuple(filter(None, self.columns.texts(table.columns)))
        return Part(texts, self._numbered(table), range(len(table)), range(1, len(table) + 1))

    def _table(self, columns: Mapping[str, list[Any]]) -> Table:
        return Table(self.stream.source, columns, is_text=self.stream.is_text, classes=self.stream.classes)

    def numbers(self, most: int | None = None) -> Iterator[Any]:
        """The labels of the first rows, or of all, in the model's form."""
        labels = (label for batch in self.batches() for label in self._numbered(self._table(batch)))
        return islice(labels, most)

    def _numbered(self, table: Table) -> list[Any]:
        """The labels of some rows in the model's form."""
        # The type is decided by all labels: whole numbers in a batch may be words.
        task = "regression" if self.labels.problem_type == "regression" else "classification"
        column = read_labels(table, self.columns, "train", task, self.decimal, placed=False)
        if missing := sum(value is None for value in column.values):
            raise UserError(
                f"Missing label in the train data: {missing} of {len(table)} rows in a row have none in column "
                f"{self.columns.label!r}. Fill it in, or leave such rows out with --skip-missing."
            )
        return apply_labels(self.labels, self.labels.numbers(), column, "train", self.columns.label)

    def encoded(self, tokenizer: Any, max_length: int) -> Iterator[dict[str, Any]]:
        """Each row as token ids and `labels`, once.

        Raises:
            UserError: a label is missing or unknown.
        """
        for batch in self.batches():
            table = self._table(batch)
            check_text(table, self.columns.text)
            labels = self._numbered(table)
            tokens = tokenizer(*filter(None, self.columns.texts(batch)), truncation=True, max_length=max_length)
            for row, label in enumerate(labels):
                yield {**{name: values[row] for name, values in tokens.items()}, "labels": label}


@dataclass(frozen=True)
class PreparedData:
    """What a run trains and scores on."""

    columns: Columns
    labels: Labels | None
    """None for a masked language model."""
    splits: Mapping[str, Part]
    """Any of train, validation and test."""
    summary: DataSummary
    streamed: StreamedPart | None = None
    """The training rows, where they are read while training."""
    shuffle_buffer: int = 0

    def training_texts(self) -> Iterable[str]:
        """Texts for a tokenizer to be trained on."""
        if self.streamed is not None:
            return self.streamed.texts()
        return all_texts(self.splits["train"].texts if "train" in self.splits else ())

    def encode(self, tokenizer: Any, max_length: int) -> dict[str, Any]:
        """The splits as token ids and, where there are labels, `labels`; a stream's training split has no end.

        Raises:
            UserError: a label of a stream's first rows isn't known.
        """
        encoded: dict[str, Any] = {}
        for split, part in self.splits.items():
            encoded[split] = encode(part, self.labels, tokenizer, max_length, split)
        if self.streamed is not None:
            from .passes import Passes

            encode(self.streamed.sample, self.labels, tokenizer, max_length, "train")  # warns of truncation
            rows = partial(self.streamed.encoded, tokenizer, max_length)
            next(rows(), None)
            encoded["train"] = Passes(rows, self.streamed.count, self.shuffle_buffer)
        return encoded


def encode(part: Part, labels: Labels | None, tokenizer: Any, max_length: int, split: str) -> Dataset:
    """The rows of a split as token ids and, where they have labels, `labels`."""
    problem = "" if labels is None else labels.problem_type
    if problem == TOKENS:
        return encode_words(part.texts[0], part.labels, tokenizer, max_length, split=split)
    return encode_texts(part.texts, part.labels, tokenizer, max_length, problem, split=split)
