"""What a run trains and scores on: a frozen `PreparedData`, which `preparing.prepare` makes."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, Self

from datasets import Dataset

from .columns import Columns, check_text, texts_of
from .encoding import all_texts, encode_texts, encode_words
from .label_cells import read_labels
from .labels import TOKENS, Labels, apply_labels, missing_label
from .splitting import marks_of
from .streaming import BATCH, SAMPLE, TOKENIZER_ROWS, mark_of_row
from .summary import DataSummary
from .table import Row, Stream, Table, Tally


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

    @classmethod
    def of(cls, table: Table, texts: tuple[Sequence[Any], ...], labels: list[Any] | None) -> Self:
        """All rows of a table."""
        return cls(texts, labels, range(len(table)), [table.place(row) for row in range(len(table))])

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def marks(self) -> list[int]:
        """A number for each text, equal for equal texts."""
        return marks_of(all_texts(self.texts)) if len(self.texts) == 1 else marks_of(*self.texts)

    def select(self, rows: Sequence[int]) -> Self:
        """Some of these rows."""

        def of(values: Sequence[Any]) -> list[Any]:
            return [values[row] for row in rows]

        labels = None if self.labels is None else of(self.labels)
        part = replace(
            self, texts=tuple(map(of, self.texts)), labels=labels, rows=of(self.rows), places=of(self.places)
        )
        if "marks" in self.__dict__:
            part.__dict__["marks"] = of(self.marks)
        return part


@dataclass(frozen=True)
class TrainingStream:
    """Training rows that are read while training."""

    stream: Stream
    columns: Columns
    labels: Labels
    held: Set[int]
    """The marks of the texts that are set aside."""
    count: int | None
    """How many rows there are, if that's known."""

    def rows(self) -> Iterator[Row]:
        """Those that aren't set aside, in order."""
        return (row for row in self.stream.rows() if not self.held or mark_of_row(row, self.columns) not in self.held)

    def batches(self) -> Iterator[Table]:
        """The same, some at a time."""
        rows = self.rows()
        while len(table := self.stream.collect(islice(rows, BATCH), Tally())):
            check_text(table, self.columns.text)
            yield table

    def texts(self) -> Iterator[str]:
        """The first training texts, for a tokenizer to be trained on."""
        rows = (row for table in self.batches() for row in zip(*self.columns.texts(table.columns), strict=True))
        for row in islice(rows, TOKENIZER_ROWS):
            yield from row

    def first(self, most: int, characters: float = math.inf) -> Part:
        """The first rows with their labels: at most so many, and no more when their texts have so many characters."""

        def within() -> Iterator[Row]:
            size = 0
            for row in islice(self.rows(), most):
                yield row
                size += sum(len(str(row.cells.get(name))) for name in self.columns.text)
                if size >= characters:
                    return

        table = self.stream.collect(within(), Tally())
        return Part.of(table, texts_of(table, self.columns, "train"), self._numbered(table))

    def numbers(self, most: int | None = None) -> Iterator[Any]:
        """The labels of the first rows, or of all, in the model's form."""
        return islice((number for table in self.batches() for number in self._numbered(table)), most)

    def _numbered(self, table: Table) -> list[Any]:
        """The labels of some rows in the model's form."""
        # The type is decided by all labels: whole numbers in a batch may be words.
        task = "regression" if self.labels.problem_type == "regression" else "classification"
        column = read_labels(table, self.columns, "train", task, self.labels.decimal)
        if missing := [row for row, value in enumerate(column.values) if value is None]:
            raise missing_label("train", column.where(missing[0]), column.name)
        return apply_labels(self.labels, column)

    def encoded(self, tokenizer: Any, max_length: int) -> Iterator[dict[str, Any]]:
        """Each row as token ids and `labels`, once.

        Raises:
            UserError: a label is missing or unknown.
        """
        for table in self.batches():
            labels = self._numbered(table)
            tokens = tokenizer(*self.columns.texts(table.columns), truncation=True, max_length=max_length)
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
    streamed: TrainingStream | None = None
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
            from .repeated_stream import RepeatedStream

            first = self.streamed.first(SAMPLE)
            encode(first, self.labels, tokenizer, max_length, "train")  # warns of truncation
            rows = partial(self.streamed.encoded, tokenizer, max_length)
            encoded["train"] = RepeatedStream(rows, self.streamed.count, self.shuffle_buffer)
        return encoded


def encode(part: Part, labels: Labels | None, tokenizer: Any, max_length: int, split: str) -> Dataset:
    """The rows of a split as token ids and, where they have labels, `labels`."""
    problem = "" if labels is None else labels.problem_type
    if problem == TOKENS:
        return encode_words(part.texts[0], part.labels, tokenizer, max_length, split=split)
    return encode_texts(part.texts, part.labels, tokenizer, max_length, problem, split=split)
