"""From the rows of all splits to what a run trains and scores on."""

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from ..errors import UserError
from .cells import is_missing
from .columns import Columns, find_columns, require_columns, texts_of
from .labels import Labels, encode_labels, standard_units
from .options import DataArguments
from .prepared import Part, PreparedData, Use
from .splitting import choose_texts, repeated
from .summary import DataSummary, SplitSummary
from .table import Table

logger = logging.getLogger(__name__)


def prepare(splits: Mapping[str, Table], data: DataArguments, use: Use) -> PreparedData:
    """Finds columns and labels, chooses the rows to use and sets validation rows aside.

    Args:
        splits: what `read_splits` gave.
        data: the options.
        use: what the run does with them.

    Raises:
        UserError: a split, a column or a label is missing, or no row is left.
    """
    _check_splits(splits, use)
    tables = _used_splits(splits, use)
    columns, labels, texts, numbers = _read(tables, data, use)
    _leave_unlabelled_test_out(tables, numbers, columns, use)
    summary = DataSummary.start(columns, labels, tables)
    parts = _usable_rows(tables, texts, numbers, data, summary)
    if use.validate and "validation" not in splits:
        whole = parts["train" if use.train else "validation"]
        parts["validation"], held = _set_aside(whole, labels, data, summary)
        if use.train:
            parts["train"] = whole.select([row for row, mark in enumerate(whole.marks) if mark not in held])
    for split in parts:
        parts[split] = _cut_to(parts[split], data.most_rows[split], summary.splits.get(split))
    are_listed = bool(data.label_names or columns.one_hot or next(iter(tables.values())).classes.get(columns.label))
    _check_labels_vary(parts, labels, data, are_listed)
    trained: Set[int] = use.trained_on
    if "train" in parts:
        train = parts["train"]
        labels = _in_units(labels, train.labels or ())
        summary.repeated, summary.contradictory = repeated(train.marks, train.labels)
        trained = set(train.marks)
    _count_shared(parts, trained, summary)
    return PreparedData(columns, labels, parts, summary)


def _check_splits(splits: Mapping[str, Table], use: Use) -> None:
    """Raises a UserError if the data lacks a split that the run needs."""
    names = ", ".join(splits)
    if use.train and "train" not in splits:
        raise UserError(f"--do-train needs training data, there is {names}. Give --train-file.")
    if use.test and "test" not in splits:
        raise UserError(f"--do-predict needs test data, there is {names}. Give --test-file.")
    if use.validate and not {"train", "validation"} & set(splits):
        raise UserError(f"--do-eval needs validation data, there is {names}. Give --validation-file.")


def _used_splits(splits: Mapping[str, Table], use: Use) -> dict[str, Table]:
    """The splits that are used. Without validation data and training, `validation` is a part of the training data."""
    used = {}
    if use.train:
        used["train"] = splits["train"]
    if use.validate and ("validation" in splits or not use.train):
        used["validation"] = splits["validation" if "validation" in splits else "train"]
    if use.test or (use.score_test and "test" in splits):
        used["test"] = splits["test"]
    return used


def _read(
    tables: Mapping[str, Table], data: DataArguments, use: Use
) -> tuple[Columns, Labels, Mapping[str, tuple[Sequence[str], ...]], Mapping[str, list[Any] | None]]:
    """Columns, labels, and for each split the texts of all rows and the numbers of their labels."""
    columns = find_columns(next(iter(tables.values())), data, use.known, needs_label=set(tables) != {"test"})
    texts = {split: texts_of(table, columns, split) for split, table in tables.items()}
    labels, numbers = encode_labels(tables, columns, data, label_names=use.label_names, problem_type=use.problem_type)
    return columns, labels, texts, numbers


def _leave_unlabelled_test_out(
    tables: dict[str, Table], numbers: Mapping[str, Any], columns: Columns, use: Use
) -> None:
    """Drops a test split that could only be scored, and has no labels to score it by; says so."""
    if "test" not in tables or numbers["test"] is not None:
        return
    if use.score_test and not (use.train or use.validate):
        require_columns(tables["test"], columns.labels, "--label-column-name", "test")
        raise UserError(f"The test data has no labels in column {columns.label!r}. Name it with --label-column-name.")
    if not use.test:
        del tables["test"]
        logger.warning("The test split has no labels, so it isn't scored. --do-predict true predicts them.")


def _usable_rows(
    tables: Mapping[str, Table],
    texts: Mapping[str, tuple[Sequence[str], ...]],
    numbers: Mapping[str, list[Any] | None],
    data: DataArguments,
    summary: DataSummary,
) -> dict[str, Part]:
    """The rows of each split that have a label, and with `--skip-missing` those that have a text."""
    parts = {}
    for split, table in tables.items():
        part, of_split = Part.of(table, texts[split], numbers[split]), summary.splits[split]
        blank = {row for row, cells in enumerate(zip(*part.texts, strict=True)) if all(map(is_missing, cells))}
        unlabelled = {row for row, number in enumerate(part.labels or ()) if number is None}
        dropped = unlabelled | (blank if data.skip_missing else set())
        if dropped:
            part = part.select([row for row in part.rows if row not in dropped])
        if not len(part):
            raise UserError(f"No row of the {split} data has both a text and a label. Give data with at least one.")
        of_split.without_label, of_split.without_text, of_split.left_out = len(unlabelled), len(blank), len(dropped)
        of_split.rows = len(part)
        parts[split] = part
    return parts


def _set_aside(whole: Part, labels: Labels, data: DataArguments, summary: DataSummary) -> tuple[Part, set[int]]:
    """The training rows that are validated on, and the marks of their texts."""
    held = choose_texts(whole.marks, whole.labels, data.validation_split_percentage, labels.problem_type)
    aside = whole.select([row for row, mark in enumerate(whole.marks) if mark in held])
    summary.set_aside = len(aside)
    if labels.problem_type == "single_label_classification":
        seen = set(aside.labels or ())
        if alone := [name for number, name in enumerate(labels.names) if number not in seen]:
            summary.notes.append(
                f"No row of {', '.join(map(repr, alone[:5]))}{f', ... ({len(alone)})' if len(alone) > 5 else ''} was "
                "set aside for validation."
            )
    return aside, held


def _cut_to(part: Part, most: int | None, of_split: SplitSummary | None) -> Part:
    cut = 0 if most is None else max(len(part) - most, 0)
    if of_split is not None:
        of_split.cut, of_split.rows = cut, len(part) - cut
    return part.select(range(len(part) - cut)) if cut else part


def _check_labels_vary(parts: Mapping[str, Part], labels: Labels, data: DataArguments, are_listed: bool) -> None:
    """Refuses training rows with one label, or with one that all or none have; warns of validation rows with one."""
    if labels.problem_type == "multi_label_classification" and "train" in parts:
        _check_each_varies(parts["train"].labels or (), labels, are_listed)
    if labels.problem_type != "single_label_classification":
        return
    for split in ("train", "validation"):
        numbers = set(parts[split].labels or ()) if split in parts else set()
        if len(numbers) != 1:
            continue
        label, count = labels.names[numbers.pop()], len(parts[split])
        if split == "train":
            raise UserError(
                f"All {count} examples that are left to train on have the label {label!r}. Give more examples of the "
                f"others{', or a greater --max-train-samples' if data.max_train_samples else ''}."
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


def _in_units(labels: Labels, numbers: Iterable[Any]) -> Labels:
    """The labels of a regression with mean and standard deviation of the training rows' numbers."""
    if labels.problem_type != "regression":
        return labels
    mean, std = standard_units(numbers)
    return replace(labels, mean=mean, std=std)


def _count_shared(parts: Mapping[str, Part], trained: Set[int], summary: DataSummary) -> None:
    """Counts the texts of other splits that stand in the training data too."""
    for split in ("validation", "test"):
        if split in parts and (shared := sum(mark in trained for mark in parts[split].marks)):
            summary.shared[split] = shared
