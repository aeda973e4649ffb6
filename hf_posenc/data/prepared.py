"""What a run trains and scores on: a frozen `PreparedData`, which `preparing.prepare` makes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from datasets import Dataset

from .columns import Columns
from .encoding import all_texts, encode_texts
from .labels import Labels
from .splitting import marks_of
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

    texts: tuple[Sequence[str], ...]
    """`(first,)`; for pairs `(first, second)`."""
    labels: list[Any] | None
    """In the model's form; None: there are none."""
    rows: Sequence[int]
    """The index of each in its split."""
    places: Sequence[int]
    """Where each stands in its file: the number of its line, or of its row."""

    @classmethod
    def of(cls, table: Table, texts: tuple[Sequence[str], ...], labels: list[Any] | None) -> Self:
        """All rows of a table."""
        return cls(texts, labels, range(len(table)), [table.place(row) for row in range(len(table))])

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def marks(self) -> list[int]:
        """A number for each text, equal for equal texts."""
        return marks_of(*self.texts)

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
class PreparedData:
    """What a run trains and scores on."""

    columns: Columns
    labels: Labels
    splits: Mapping[str, Part]
    """Any of train, validation and test."""
    summary: DataSummary

    def training_texts(self) -> Iterator[str]:
        """Texts for a tokenizer to be trained on."""
        return all_texts(self.splits["train"].texts if "train" in self.splits else ())

    def encode(self, tokenizer: Any, max_length: int) -> dict[str, Dataset]:
        """The splits as token ids and, where there are labels, `labels`."""
        return {split: encode(part, self.labels, tokenizer, max_length, split) for split, part in self.splits.items()}


def encode(part: Part, labels: Labels, tokenizer: Any, max_length: int, split: str) -> Dataset:
    """The rows of a split as token ids and, where they have labels, `labels`."""
    return encode_texts(part.texts, part.labels, tokenizer, max_length, labels.problem_type, split=split)
