"""From the rows of all splits to what a run trains and scores on: a frozen `PreparedData`."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetInfo, Features, List, Value

from ..errors import UserError
from ..options import Options
from .columns import Columns, find_columns
from .labels import Labels, encode_labels, is_missing, standard_units
from .reading import LINE, classes_of, counted, names_of, where
from .splitting import choose_texts, marks_of, repeated

logger = logging.getLogger(__name__)

TEXTS = ("text", "text_pair")
"""The columns of a prepared split that hold its texts."""
_MARK = "__mark__"
_TARGETS = {
    "single_label_classification": Value("int64"),
    "multi_label_classification": List(Value("float32")),
    "regression": Value("float64"),
}


@dataclass(frozen=True)
class Known:
    """What a trained classifier knows of its data."""

    columns: Columns | None = None
    label_names: tuple[str, ...] = ()
    """Its labels, in order."""
    problem_type: str | None = None
    trained_on: frozenset[int] = frozenset()
    """The marks of the texts that it was trained on, where these are known."""


@dataclass
class SplitSummary:
    """One split."""

    read: str
    """Rows, lines, joined rows and empty lines of its file."""
    rows: int = 0
    """Rows that are used."""
    without_label: int = 0
    without_text: int = 0
    left_out: int = 0
    """Rows without label or text, with --skip-missing."""
    cut: int = 0
    """Rows beyond --max-rows."""


@dataclass
class DataSummary:
    """The data of a run, in words for the terminal, the card and `results.json`."""

    columns: str
    """Text, label and unused columns."""
    labels: str = ""
    splits: dict[str, SplitSummary] = field(default_factory=dict)
    set_aside: int = 0
    """Training rows to validate on, where there is no validation data."""
    repeated: int = 0
    """Training rows that repeat an earlier text with its label."""
    contradictory: int = 0
    """Training texts that stand there with different labels."""
    shared: dict[str, int] = field(default_factory=dict)
    """Rows of other splits whose text stands in the training data too."""
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        """All in one line."""
        parts = [self.columns, *filter(None, [self.labels])]
        for split, summary in self.splits.items():
            extra = f", {summary.left_out:,} left out" if summary.left_out else ""
            extra += f", the first {summary.rows:,} used" if summary.cut else ""
            parts.append(f"{split} {summary.read}{extra}")
        if self.set_aside:
            parts.append(f"{self.set_aside:,} of them set aside for validation")
        return "; ".join(parts) + "."

    def doubts(self) -> list[str]:
        """What may make scores say less than they seem to."""
        doubts = list(self.notes)
        for split, summary in self.splits.items():
            if summary.without_label:
                rows = counted(summary.without_label, f"{split} row")
                doubts.append(f"{rows} without a label left out (--skip-missing).")
            if summary.without_text:
                rows = counted(summary.without_text, f"{split} row")
                doubts.append(f"{rows} without a text left out (--skip-missing).")
        if self.repeated:
            doubts.append(f"{counted(self.repeated, 'train row')} with the text and the label of an earlier one.")
        if self.contradictory:
            doubts.append(f"{counted(self.contradictory, 'training text')} with different labels in different rows.")
        for split, count in self.shared.items():
            texts = counted(self.splits[split].rows, f"{split} text")
            doubts.append(f"{count:,} of {texts} also in the training data: scores on them say little.")
        return doubts

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "line": self.line(), "doubts": self.doubts()}


@dataclass(frozen=True)
class PreparedData:
    """What a run trains and scores on.

    Attributes:
        columns: of the file.
        labels: the task and the labels in order.
        splits: any of train, validation and test, each with the columns `text`, `text_pair` for pairs, `__line__` and,
            where there are any, `labels` in the model's form.
        summary: what was read, used and left out.
    """

    columns: Columns
    labels: Labels
    splits: Mapping[str, Dataset]
    summary: DataSummary

    def training_texts(self) -> Iterator[str]:
        """Texts for a tokenizer to be trained on."""
        return chain.from_iterable(zip(*texts_of(self.splits["train"]), strict=True))

    @property
    def trained_on(self) -> list[int] | None:
        """The marks of the training texts (see `splitting.mark_of`)."""
        return self.splits["train"][_MARK][:] if "train" in self.splits else None


def texts_of(part: Dataset) -> tuple[list[str], ...]:
    """The texts of a prepared split: `(first,)`, or `(first, second)` of pairs."""
    return tuple(part[name][:] for name in TEXTS if name in part.column_names)


def labels_of(part: Dataset) -> list[Any] | None:
    """The labels of a prepared split, in the model's form; None: it has none."""
    return part["labels"][:] if "labels" in part.column_names else None


def prepare(tables: Mapping[str, Dataset], options: Options, known: Known | None = None) -> PreparedData:
    """Finds columns and labels, chooses the rows to use and sets validation rows aside.

    Args:
        tables: the splits, as they were read. Without `train` they are only scored.
        options: the options.
        known: of the checkpoint to start from, or to score.

    Raises:
        UserError: a split, a column or a label is missing, or no row is left.
    """
    known, trains = known or Known(), "train" in tables
    first = next(iter(tables.values()))
    columns = find_columns(first, options, None if trains else known.columns)
    texts = {split: columns.texts(table) for split, table in tables.items()}
    labels, numbers = encode_labels(
        tables, columns, options, label_names=known.label_names, problem_type=known.problem_type
    )
    summary = _start(columns, labels, tables)
    if trains and "test" in tables and numbers["test"] is None:
        logger.warning("The test split has no labels, so it isn't scored. `hf-posenc predict` labels it.")
        tables = {split: table for split, table in tables.items() if split != "test"}
        del summary.splits["test"]
    parts = {
        split: _usable_rows(split, table, texts[split], numbers[split], labels, options, summary.splits[split])
        for split, table in tables.items()
    }
    if trains and "validation" not in parts and options.validation_share:
        parts = {**_set_aside(parts["train"], labels, options.validation_share, summary), **_without(parts, "train")}
    if trains and options.max_rows is not None and len(parts["train"]) > options.max_rows:
        summary.splits["train"].cut = len(parts["train"]) - options.max_rows
        summary.splits["train"].rows = options.max_rows
        parts["train"] = _take(parts["train"], list(range(options.max_rows)))
    _check_labels_vary(parts, labels, options, bool(columns.one_hot or classes_of(first, columns.label)))
    trained = known.trained_on
    if trains:
        marks, targets = parts["train"][_MARK][:], labels_of(parts["train"])
        if labels.problem_type == "regression":
            mean, std = standard_units(targets or ())
            labels = replace(labels, mean=mean, std=std)
        summary.repeated, summary.contradictory = repeated(marks, targets)
        trained = frozenset(marks)
    for split in _without(parts, "train"):
        if shared := sum(mark in trained for mark in parts[split][_MARK][:]):
            summary.shared[split] = shared
    return PreparedData(columns, labels, parts, summary)


def _start(columns: Columns, labels: Labels, tables: Mapping[str, Dataset]) -> DataSummary:
    """The summary of splits that have been read."""
    in_words = "numbers to predict"
    if labels.problem_type != "regression":
        more = ", ..." * (len(labels.names) > 5)
        in_words = f"{len(labels.names)} labels ({', '.join(labels.names[:5])}{more})"
    splits = {split: SplitSummary(table.info.description) for split, table in tables.items()}
    return DataSummary(columns.sentence(names_of(next(iter(tables.values())))), in_words, splits)


def _usable_rows(
    split: str,
    table: Dataset,
    texts: tuple[list[str], ...],
    numbers: list[Any] | None,
    labels: Labels,
    options: Options,
    summary: SplitSummary,
) -> Dataset:
    """The rows of a split that have a label, and with `--skip-missing` those that have a text."""
    blank = {row for row, cells in enumerate(zip(*texts, strict=True)) if all(map(is_missing, cells))}
    if blank and not options.skip_missing:
        others = f", nor {'has 1 other' if len(blank) == 2 else f'have {len(blank) - 1} others'}" * (len(blank) > 1)
        raise UserError(
            f"Missing text in the {split} data: {where(table, min(blank))} has none{others}. Fill it in, or leave such "
            "rows out with --skip-missing."
        )
    unlabelled = {row for row, number in enumerate(numbers or ()) if number is None}
    dropped = unlabelled | blank
    kept = [row for row in range(len(table)) if row not in dropped]
    if not kept:
        raise UserError(f"No row of the {split} data has both a text and a label. Give data with at least one.")
    summary.without_label, summary.without_text, summary.left_out = len(unlabelled), len(blank), len(dropped)
    summary.rows = len(kept)
    columns: dict[str, list[Any]] = {**dict(zip(TEXTS, texts, strict=False)), LINE: table[LINE][:]}
    columns[_MARK] = marks_of(*texts)
    kinds: dict[str, Any] = {name: Value("string") for name in columns} | {LINE: Value("int64"), _MARK: Value("uint64")}
    if numbers is not None:
        columns["labels"], kinds["labels"] = numbers, _TARGETS[labels.problem_type]
    columns = {name: [cells[row] for row in kept] if dropped else cells for name, cells in columns.items()}
    features = Features(kinds)
    return Dataset(pa.Table.from_pydict(columns, schema=features.arrow_schema), info=DatasetInfo(features=features))


def _without(parts: Mapping[str, Dataset], split: str) -> dict[str, Dataset]:
    return {name: part for name, part in parts.items() if name != split}


def _set_aside(whole: Dataset, labels: Labels, share: float, summary: DataSummary) -> dict[str, Dataset]:
    """The training rows to train on, and those to validate on."""
    marks, targets = whole[_MARK][:], labels_of(whole)
    held = choose_texts(marks, targets, share, labels.problem_type)
    aside = _take(whole, [row for row, mark in enumerate(marks) if mark in held])
    summary.set_aside = len(aside)
    if labels.problem_type == "single_label_classification":
        seen = set(aside["labels"][:])
        if alone := [name for number, name in enumerate(labels.names) if number not in seen]:
            summary.notes.append(
                f"No row of {', '.join(map(repr, alone[:5]))}{f', ... ({len(alone)})' if len(alone) > 5 else ''} was "
                "set aside for validation."
            )
    return {"train": _take(whole, [row for row, mark in enumerate(marks) if mark not in held]), "validation": aside}


def _take(part: Dataset, rows: list[int]) -> Dataset:
    """These rows, together in memory: a selection of datasets is looked up row by row."""
    return Dataset(part.with_format("arrow")[:].take(rows), info=part.info)


def _check_labels_vary(parts: Mapping[str, Dataset], labels: Labels, options: Options, are_listed: bool) -> None:
    """Refuses training rows with one label, or with one that all or none have; warns of validation rows with one."""
    if labels.problem_type == "multi_label_classification" and "train" in parts:
        _check_each_varies(parts["train"]["labels"][:], labels, are_listed or bool(options.label_names))
    if labels.problem_type != "single_label_classification":
        return
    for split in ("train", "validation"):
        numbers = set(labels_of(parts[split]) or ()) if split in parts else set()
        if len(numbers) != 1:
            continue
        label, count = labels.names[numbers.pop()], len(parts[split])
        if split == "train":
            raise UserError(
                f"All {count} examples that are left to train on have the label {label!r}. Give more examples of the "
                f"others{', or a greater --max-rows' if options.max_rows else ''}."
            )
        logger.warning(
            f"All {count} validation examples have the label {label!r}: scores on them say little. Give examples of "
            "other labels."
        )


def _check_each_varies(rows: Sequence[Sequence[float]], labels: Labels, are_listed: bool) -> None:
    """Refuses labels that all training rows have, or none, unless an option or the data set lists them."""
    counts = [sum(column) for column in zip(*rows, strict=True)]
    odd = [name for name, count in zip(labels.names, counts, strict=True) if count in (0, len(rows))]
    if not odd:
        return
    what = f"All or none of the {len(rows)} training rows have the label {', '.join(map(repr, odd[:5]))}"
    if not are_listed:
        raise UserError(
            f"{what}: nothing can be learned of it. Give other rows, or list all labels with --label-names "
            f"{','.join(labels.names)}."
        )
    logger.warning(f"{what}: nothing is learned of it.")
