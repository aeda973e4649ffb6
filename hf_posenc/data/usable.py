"""Which splits and rows can be used, and what of them is said."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import UserError
from .cells import is_missing
from .columns import Columns, require_columns
from .labels import Labels, standard_units
from .options import DataArguments
from .prepared import Part, Use
from .summary import DataSummary
from .table import Table

logger = logging.getLogger(__name__)


def check_splits(splits: Mapping[str, Any], use: Use) -> None:
    """Raises a UserError if the data lacks a split that the run needs."""
    there = ", ".join(splits)
    if use.train and "train" not in splits:
        raise UserError(f"--do-train needs training data, there is {there}. Give --train-file.")
    if use.test and "test" not in splits:
        raise UserError(f"--do-predict needs test data, there is {there}. Give --test-file.")
    if use.validate and not {"train", "validation"} & set(splits):
        raise UserError(f"--do-eval needs validation data, there is {there}. Give --validation-file.")


def leave_unlabelled_test_out(chosen: dict[str, Table], numbers: dict[str, Any], columns: Columns, use: Use) -> None:
    """Drops a test split that could only be scored, and has no labels to score it by; says so."""
    if "test" not in chosen or numbers["test"] is not None or not use.labelled:
        return
    if use.score_test and set(chosen) == {"test"}:
        require_columns(chosen["test"], columns.labels, "--label-column-name", "test")
        raise UserError(f"The test data has no labels in column {columns.label!r}. Name it with --label-column-name.")
    if not use.test:
        del chosen["test"]
        logger.warning("The test split has no labels, so it isn't scored. --do-predict true predicts them.")


def usable(
    split: str,
    table: Table,
    texts: tuple[Sequence[Any], ...],
    numbers: list[Any] | None,
    data: DataArguments,
    summary: DataSummary,
) -> Part:
    """The rows that have a label, and with `--skip-missing` those that have a text."""
    blank = {row for row, cells in enumerate(zip(*texts, strict=True)) if not any(map(_holds_text, cells))}
    unlabelled = {row for row, number in enumerate(numbers or ()) if number is None}
    dropped = unlabelled | (blank if data.skip_missing else set())
    rows = [row for row in range(len(table)) if row not in dropped]
    of_split = summary.splits[split]
    of_split.without_label, of_split.without_text, of_split.left_out = len(unlabelled), len(blank), len(dropped)
    of_split.rows = len(rows)
    if not rows:
        raise UserError(f"No row of the {split} data has both a text and a label. Give data with at least one.")
    part = Part(texts, numbers, range(len(table)), [table.place(row) for row in range(len(table))])
    return part.select(rows) if dropped else part


def _holds_text(cell: Any) -> bool:
    return bool(cell) if isinstance(cell, list) else not is_missing(cell)


def in_units(labels: Labels | None, numbers: Iterable[Any] | None) -> Labels | None:
    """The labels of a regression with mean and standard deviation of the training rows' numbers."""
    if labels is None or labels.problem_type != "regression" or numbers is None:
        return labels
    mean, std = standard_units(numbers)
    return replace(labels, mean=mean, std=std)
