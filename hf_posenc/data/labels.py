"""The task, and the number of each label."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import UserError
from .cells import as_written
from .columns import Columns
from .label_cells import LabelColumn, decimal_sign, read_labels
from .options import DataArguments
from .table import Table

logger = logging.getLogger(__name__)

MOST_NUMBERED = 50
"""More distinct whole floats than this mean a regression."""
_NAME_LABELS = "Name the right one with --label-column-name."
_MISSING_VALUES = {"NA", "N/A", "#N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "\\N"}
"""What R, pandas, databases and spreadsheets write for a missing cell."""
_MANY_LABELS = 10
"""More distinct whole numbers than this may well be meant as numbers."""


@dataclass(frozen=True)
class Labels:
    """The labels in order; the same for all splits."""

    problem_type: str
    names: tuple[str, ...] = ()
    mean: float = 0.0
    """Of the training rows' numbers, for a regression; see `standard_units`."""
    std: float = 1.0

    @property
    def num_labels(self) -> int:
        """Outputs of the model: one for a regression."""
        return 1 if self.problem_type == "regression" else len(self.names)

    def numbers(self) -> dict[str, int]:
        """Each label's number."""
        return {name: number for number, name in enumerate(self.names)}


def standard_units(numbers: Iterable[float | None]) -> tuple[float, float]:
    """Mean and standard deviation (over n, not n - 1) of numbers, computed in float64; None doesn't count.

    Numbers that float32 can't tell apart have a standard deviation of 1, by which one may divide.
    """
    values = np.fromiter((number for number in numbers if number is not None), dtype=np.float64)
    mean, std = float(values.mean()), float(values.std())
    smallest = max(abs(mean) * np.finfo(np.float32).eps, np.finfo(np.float32).tiny)
    return mean, std if std > smallest else 1.0


def encode_labels(
    splits: Mapping[str, Table],
    columns: Columns,
    options: DataArguments | None = None,
    *,
    label_names: Sequence[str] | None = None,
    problem_type: str | None = None,
) -> tuple[Labels, dict[str, list[Any] | None]]:
    """Decides the task and numbers the labels from the training split, for all splits.

    Lists mean several labels per text, real numbers a regression, all else one label per text. Integers keep their
    order, words are sorted. Whole floats (0.0, 1.0) are labels if they are few and each has several texts.

    Args:
        splits: any of train, validation and test. Test alone may lack labels.
        columns: where the labels are.
        options: the task, the decimal sign, and whether rows without a label are left out.
        label_names: of a trained model. They keep their order if they are the data's, and alone count where there is
            no training split.
        problem_type: its task.

    Returns:
        The labels, and for each split the numbers to train on (None where it has no labels): int, a list of 0.0 and
        1.0 for each label, or float; None for a row that has no label and is left out.

    Raises:
        UserError: a label is missing, unknown in training, or labels are of mixed types.
    """
    options = options or DataArguments()
    task = options.task if options.task in ("classification", "regression") else None
    decimal = decimal_sign(splits.values(), columns, options)
    labelled: list[LabelColumn] = []
    for split, table in splits.items():
        if split == "test" and not set(columns.labels) <= set(table.names):
            continue
        column = read_labels(table, columns, split, task, decimal)
        missing = [row for row, value in enumerate(column.values) if value is None]
        if not column.present:
            if split == "test":
                continue
            raise UserError(f"No row of the {split} data has a label in column {columns.label!r}. {_NAME_LABELS}")
        if missing and not options.skip_missing:
            raise _missing_label(split, column.where(missing[0]), columns.label, len(missing) - 1)
        labelled.append(column)
    if columns.one_hot and all(len(value) == 1 for column in labelled for value in column.values):
        labelled = [replace(column, values=[name for (name,) in column.values], is_list=False) for column in labelled]
    labels = _decide(labelled, columns, task, label_names, problem_type)
    return labels, dict.fromkeys(splits) | {column.split: apply_labels(labels, column) for column in labelled}


def _missing_label(split: str, where: str, column: str, more: int) -> UserError:
    """The error of a row that has no label, and of so many more."""
    others = "" if not more else ", nor has 1 other" if more == 1 else f", nor have {more} others"
    return UserError(
        f"Missing label in the {split} data: {where} has none in column {column!r}{others}. Fill it in, or leave such "
        "rows out with --skip-missing."
    )


def _decide(
    labelled: Sequence[LabelColumn],
    columns: Columns,
    task: str | None,
    label_names: Sequence[str] | None,
    problem_type: str | None,
) -> Labels:
    if not labelled:
        if not label_names:
            raise UserError(
                "The data has no labels, and no trained model says what they are. Give labelled training data."
            )
        return Labels(problem_type or "single_label_classification", tuple(label_names))
    source = next((column for column in labelled if column.split == "train"), labelled[0])
    is_train, name = source.split == "train", source.name
    if not is_train and problem_type is not None:
        _check_labels_fit(source, problem_type)
        task = "regression" if problem_type == "regression" else "classification"
    if (task or _looks_like(source)) == "regression":
        if not source.are_numbers:
            words = [
                value for value in source.present if isinstance(value, str) and isinstance(as_written([value])[0], str)
            ]
            raise UserError(
                f"--task regression needs one number per text, column {name!r} has {(words or source.present)[0]!r}. "
                "Leave it out to predict labels."
            )
        return Labels("regression")
    problem = "multi_label_classification" if source.is_list else "single_label_classification"
    if not is_train and label_names:
        return Labels(problem, tuple(label_names))
    names = columns.one_hot or _label_names(source)
    if label_names and set(label_names) == set(names):
        names = tuple(label_names)
    if not names:
        raise UserError(f"No training example has a label in column {name!r}. {_NAME_LABELS}")
    if len(names) < 2 and problem == "single_label_classification":
        raise UserError(
            f"All training examples have the label {names[0]!r}. Give examples of at least two labels, or the right "
            "column with --label-column-name."
        )
    if is_train:
        _warn_of_odd_labels(source)
    return Labels(problem, names)


def _looks_like(column: LabelColumn) -> str:
    """Infers the task from the labels."""
    if not column.are_numbers:
        return "classification"
    distinct = set(column.present)
    if column.kind == "integer":
        if len(distinct) > _MANY_LABELS:
            logger.warning(
                f"Column {column.name!r} has {len(distinct)} different whole numbers in {len(column.present)} rows, "
                "each of which is a label of its own. --task regression predicts numbers."
            )
        return "classification"
    # A label has at least two texts on average.
    if not (2 * len(distinct) <= len(column.present) and len(distinct) <= MOST_NUMBERED and column.are_whole):
        return "regression"
    logger.warning(
        f"Column {column.name!r} has the numbers {', '.join(map(str, sorted(distinct)[:5]))}"
        f"{', ...' if len(distinct) > 5 else ''}, which are taken for labels. --task regression predicts numbers."
    )
    return "classification"


def _warn_of_odd_labels(column: LabelColumn) -> None:
    """Warns of labels that look like one label in two spellings, or like several labels in one cell."""
    counts = Counter(map(str, column.items()))
    spellings: dict[str, list[str]] = {}
    for label in counts:
        plain = label.casefold()
        spellings.setdefault(str(int(plain)) if plain.isdecimal() else plain, []).append(label)
    if alike := [labels for labels in spellings.values() if len(labels) > 1]:
        logger.warning(
            f"Column {column.name!r} has the labels {' and '.join(map(repr, alike[0]))}, which count as different "
            "labels."
        )
    if nothing := sorted(_MISSING_VALUES.intersection(counts)):
        logger.warning(
            f"Column {column.name!r} has the label {nothing[0]!r} in {counts[nothing[0]]:,} rows, which counts as a "
            "label. If it means that there is none, empty these cells and give --skip-missing."
        )
    if column.is_list or len(counts) <= _MANY_LABELS or column.kind != "text":
        return
    for delimiter in "|;,/+&":
        parts = {part.strip() for label in counts for part in label.split(delimiter)}
        several = sum(delimiter in label for label in counts)
        if several >= len(counts) / 2 and 2 * len(parts) <= len(counts):
            example = next(label for label in counts if delimiter in label)
            logger.warning(
                f"Column {column.name!r} has {len(counts)} labels such as {example!r}, of {len(parts)} parts. If these "
                f"are several labels in one cell, give --label-delimiter '{delimiter}'."
            )
            return
    if 2 * len(counts) > len(column.present):
        logger.warning(
            f"Column {column.name!r} has {len(counts)} different labels in {len(column.present)} rows: most have one "
            f"example. {_NAME_LABELS}"
        )


def _label_names(column: LabelColumn) -> tuple[str, ...]:
    if column.known is not None:
        return column.known
    seen = set(column.items())
    if column.kind == "number":
        return tuple(str(int(value) if column.are_whole else value) for value in sorted(seen))
    return tuple(sorted(seen, key=int) if column.kind == "integer" else sorted(seen))


def _as_label(value: Any, numbers: Mapping[str, int]) -> str:
    """The name of a label that may be a number: 1.0 is the label 1, if it exists."""
    if isinstance(value, float) and value.is_integer() and str(value) not in numbers:
        return str(int(value))
    return str(value)


def _check_labels_fit(column: LabelColumn, problem_type: str) -> None:
    """Refuses labels that don't fit the trained model's task."""
    single = not column.is_list and (column.are_whole or column.kind != "number")
    fits, does, way_out = {
        "regression": (column.are_numbers, "predicts a number", "Give data with one number per text"),
        "multi_label_classification": (
            column.is_list,
            "gives each text several labels",
            "Write lists of labels, say what separates labels in one cell with --label-delimiter",
        ),
    }.get(problem_type, (single, "gives each text one label", "Give data with one label per text"))
    if not fits:
        raise UserError(
            f"The model {does}, column {column.name!r} has {column.present[0]!r}. {way_out}, or name the right column "
            "with --label-column-name."
        )


def apply_labels(labels: Labels, column: LabelColumn) -> list[Any]:
    """The numbers of a split's labels, as `encode_labels` returns them.

    Raises:
        UserError: a label is unknown, or of another type than those of the training data.
    """
    if labels.problem_type == "regression":
        return _finite_numbers(column)
    split, numbers, several = column.split, labels.numbers(), labels.problem_type == "multi_label_classification"
    if column.is_list != several:
        raise UserError(
            f"Mixed label types: column {column.name!r} has {column.present[0]!r} in the {split} data, unlike what was "
            f"trained on ({'lists of labels' if several else 'one label per text'}). Write both alike."
        )
    result: list[Any] = []
    unknown: list[tuple[str, int]] = []
    for row, value in enumerate(column.values):
        if value is None:
            result.append(None)
            continue
        named = [_as_label(item, numbers) for item in (value if several else (value,))]
        unknown += [(label, row) for label in named if label not in numbers]
        if not several:
            result.append(numbers.get(named[0]))
        elif len(set(named)) == len(named):
            result.append([float(name in named) for name in labels.names])
        else:
            raise UserError(
                f"The {split} data names a label twice in {column.where(row)}: {value!r}. Give each text a list of "
                "the labels that apply (not a 0 or 1 for each label)."
            )
    if unknown:
        ((label, count),) = Counter(label for label, _ in unknown).most_common(1)
        first = next(row for name, row in unknown if name == label)
        often = "once" if count == 1 else f"{count} times"
        raise UserError(
            f"The {split} data has the label {label!r} ({often}, first in {column.where(first)}), "
            f"which training never saw. It knows {', '.join(map(repr, labels.names[:10]))}"
            f"{', ...' if len(labels.names) > 10 else ''}. Add examples to the training data or leave these rows out."
        )
    return result


def _finite_numbers(column: LabelColumn) -> list[Any]:
    name, split = column.name, column.split
    if not column.are_numbers:
        raise UserError(
            f"Mixed label types: column {name!r} has numbers in the training data and {column.present[0]!r} in the "
            f"{split} data. Write numbers in both."
        )
    values = [None if value is None else float(value) for value in column.values]
    if bad := [row for row, value in enumerate(values) if value is not None and not math.isfinite(value)]:
        raise UserError(
            f"The {split} data has {values[bad[0]]} in column {name!r}, {column.where(bad[0])}. Give a finite number."
        )
    return values
