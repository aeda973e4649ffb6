"""The task, and the number of each label: decided by how labels are written, never by what they look like."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

from ..errors import UserError
from ..options import Options
from .columns import Columns, require_columns
from .reading import classes_of, counted, where

MOST_NUMBERED = 50
"""More different whole numbers than this need --task."""
_MARKS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""What columns of 0 and 1 may hold."""
# A csv has no types. 007, +5 and 1e5 may be names, so they stay strings.
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_NUMBER = re.compile(
    r"0|-?[1-9]\d{0,17}|[+-]?(0|[1-9]\d*)\.\d*(e[+-]?\d+)?|[+-]?\.\d+(e[+-]?\d+)?|[+-]?[1-9]\d*e[+-]\d+|nan|-?inf", re.I
)
_COMMA = re.compile(r"[+-]?\d[\d.]*,\d+")


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

    def sentence(self) -> str:
        """How many there are, and the first ones."""
        listed = ", ".join(self.names[:5]) + ", ..." * (len(self.names) > 5)
        return f"{len(self.names)} labels ({listed})" if self.names else "numbers to predict"


@dataclass(frozen=True)
class _Column:
    """The labels of one split.

    Attributes:
        name, split, table: where they stand.
        values: for each row a name, a list of names, or a float; None if it has none.
        is_list: whether a row has several.
        kind: how they are written: `words`, `whole` numbers, or `real` ones, of which one has a fraction.
        known: all labels, if the data set declares them or `--label-names` does.
    """

    name: str
    split: str
    table: Dataset
    values: list[Any]
    is_list: bool
    kind: str
    known: tuple[str, ...] | None = None

    @property
    def present(self) -> list[Any]:
        """The values that aren't missing."""
        return [value for value in self.values if value is not None]

    def items(self) -> list[Any]:
        """All labels, repeated for each text that has them."""
        return [item for value in self.present for item in value] if self.is_list else self.present


def encode_labels(
    splits: Mapping[str, Dataset],
    columns: Columns,
    options: Options | None = None,
    *,
    label_names: Sequence[str] = (),
    problem_type: str | None = None,
) -> tuple[Labels, dict[str, list[Any] | None]]:
    """Decides the task and numbers the labels from the training split, for all splits.

    Words and whole numbers (1.0 is whole) are one class per text, lists and columns of 0 and 1 several, numbers with
    fractions a regression.
    Whole numbers keep their order, words are sorted; `--label-names` says what 0, 1, ... mean, or the order of words.

    Args:
        splits: any of train, validation and test. Test alone may lack labels.
        columns: where the labels are.
        options: the task, names for numbered labels, and whether rows without a label are left out.
        label_names: of a trained model. They keep their order if they are the data's. Where there is no training
            split, labels must be among them; 0, 1, ... count only where they are LABEL_0, LABEL_1, ...
        problem_type: its task.

    Returns:
        The labels, and for each split the numbers to train on (None where it has no labels): int, a list of 0.0 and
        1.0 for each label, or float; None for a row that has no label and is left out.

    Raises:
        UserError: a label is missing, unknown, or could be meant in two ways.
    """
    options = options or Options()
    problem_type = problem_type or "single_label_classification"
    labelled: list[_Column] = []
    spelt: set[Any] = set() if "train" in splits else {*label_names}
    for split, table in sorted(splits.items(), key=lambda item: item[0] != "train"):
        if split == "test" and not set(columns.labels) <= set(table.column_names):
            continue
        column = _read(table, columns, split, options, spelt)
        missing = [row for row, value in enumerate(column.values) if value is None]
        if split == "test" and len(missing) == len(table):
            continue
        if missing and (len(missing) == len(table) or not options.skip_missing):
            raise UserError(
                f"Missing label in the {split} data: {where(table, missing[0])} has none in column {columns.label!r} "
                f"({counted(len(missing), 'row')} in all). Fill it in, leave such rows out with --skip-missing, or "
                "name another column with --label-column."
            )
        labelled.append(column)
        if split == "train" and column.kind == "words":  # the other splits write their labels as these do
            spelt = set(column.items())
    if not labelled:
        return Labels(problem_type, tuple(label_names)), dict.fromkeys(splits)
    train = next((column for column in labelled if column.split == "train"), None)
    if train is not None:
        labels = _of_training(train, columns, options, tuple(label_names))
    else:
        labels = _of_a_model(labelled[0], tuple(label_names), problem_type, options)
        if columns.one_hot and (lacking := [name for name in labels.names if name not in columns.one_hot]):
            raise UserError(
                f"--label-column {','.join(columns.one_hot)} has no column for the model's label {lacking[0]!r}. Name "
                f"one for each: --label-column {','.join(labels.names)}."
            )
    if options.named_labels and {*options.named_labels} != {*labels.names}:
        raise UserError(
            f"--label-names {options.label_names!r} can't be: column {columns.label!r} holds {labels.sentence()}. Name "
            "these, or leave it out."
        )
    return labels, dict.fromkeys(splits) | {column.split: _numbered(labels, column) for column in labelled}


# ---- reading --------------------------------------------------------------------------------------------------------


def _read(table: Dataset, columns: Columns, split: str, options: Options, spelt: set[Any]) -> _Column:
    """The label column of a split; cells of a csv that are among the labels `spelt` stay as they are written."""
    require_columns(table, columns.labels, "--label-column", split)
    name, said = columns.label, options.named_labels
    if columns.one_hot:
        return _Column(name, split, table, _of_one_hot(table, columns.one_hot), True, "words")
    if options.label_column is None and {f"input_{name}", "confidence"} & {*table.column_names}:
        raise UserError(
            f"{table.info.dataset_name}: column {name!r} seems to hold answers of `hf-posenc predict`. Say which "
            "column holds the labels: --label-column NAME."
        )
    cells, known = table[name][:], classes_of(table, name)
    if (delimiter := columns.label_delimiter) is not None:  # an empty cell says that none applies
        strings = ["" if is_missing(cell) else str(cell) for cell in cells]
        cells = [
            cell if isinstance(cell, list) else [part.strip() for part in string.split(delimiter) if part.strip()]
            for cell, string in zip(cells, strings, strict=True)
        ]
    elif table.info.builder_name == "csv" and any(not is_missing(x) and x.strip() not in spelt for x in cells):
        cells = _as_written(cells, numbers=options.task != "classification")
    cells = [None if is_missing(cell) else cell for cell in cells]
    is_list = any(isinstance(cell, list) for cell in cells)
    if is_list and known is None:
        cells = _names_of_marks(cells, said, name)
    items = [item for cell in cells if cell is not None for item in (cell if is_list else [cell])]
    if odd := [item for item in items if not isinstance(item, str | int | float)]:
        raise UserError(
            f"Column {name!r} of the {split} data has {odd[0]!r:.60}, which is no label. Write words or numbers."
        )
    kind = "words" if known is not None or any(isinstance(item, str | bool) for item in items) else "whole"
    if kind == "whole" and any(not float(item).is_integer() for item in items):
        kind = "real"
    declared = known is not None
    # Names that are numbers themselves name the numbers of the file; others say what 0, 1, ... mean.
    if said and options.task != "regression" and kind == "whole" and not any(map(_WHOLE.fullmatch, said)):
        known = said

    def label(item: Any) -> Any:
        if known is not None and not isinstance(item, str):
            # -1 of a declared label: none, as in GLUE
            return known[int(item)] if 0 <= item < len(known) else None if declared else str(int(item))
        if isinstance(item, str | bool):
            return str(item).strip()
        return float(item) if kind == "real" else str(int(item))

    values = [None if cell is None else [label(item) for item in cell] if is_list else label(cell) for cell in cells]
    return _Column(name, split, table, values, is_list, kind if known is None else "words", known)


def _as_written(cells: Sequence[Any], numbers: bool = True) -> list[Any]:
    """A csv column as integers if all cells are, as floats if all are numbers, else as strings.

    With `numbers=False` floats stay strings unless all are whole: as names, 1.10 and 1.1 differ.
    """
    stripped = [None if is_missing(cell) else cell.strip() for cell in cells]
    present = {cell for cell in stripped if cell is not None}
    if all(map(_WHOLE.fullmatch, present)):
        return [None if cell is None else int(cell) for cell in stripped]
    if all(map(_NUMBER.fullmatch, present)):
        values = [None if cell is None else float(cell) for cell in stripped]
        if numbers or all(value is None or math.isnan(value) or value.is_integer() for value in values):
            return values
    return stripped


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())  # NaN differs from itself


def _of_one_hot(table: Dataset, names: Sequence[str]) -> list[list[str] | None]:
    """For each row the names of the columns that hold 1; None if a cell is blank."""
    rows: list[list[str] | None] = [[] for _ in range(len(table))]
    for name in names:
        for row, cell in enumerate(table[name][:]):
            mark, marked = _MARKS.get(str(cell).strip().lower()), rows[row]
            if mark is None and not is_missing(cell):
                raise UserError(
                    f"--label-column names several columns of 0 and 1: column {name!r} has {cell!r:.40} in "
                    f"{where(table, row)}."
                )
            rows[row] = None if mark is None or marked is None else marked + [name] * mark
    return rows


def _names_of_marks(cells: list[Any], said: tuple[str, ...], column: str) -> list[Any]:
    """Lists that hold 0 and 1 alone and are equally long, of more than one item, as the names that they mark."""
    lists = [cell for cell in cells if cell is not None]
    length = len(lists[0])
    if length < 2 or any(len(marks) != length for marks in lists):
        return cells
    if any(isinstance(item, str) or item not in (0, 1) for marks in lists for item in marks):
        return cells
    if len(said) != length:
        raise UserError(
            f"Column {column!r} holds lists of {length} numbers 0 and 1, such as {lists[0]}: a mark for each label, or "
            f"the names of labels? For marks, name the {length} labels in order: --label-names a,b,... Else write the "
            "labels' names as strings."
        )
    return [cell and [name for name, mark in zip(said, cell, strict=True) if mark] for cell in cells]


# ---- the task and the names -----------------------------------------------------------------------------------------


def _of_training(column: _Column, columns: Columns, options: Options, trained: tuple[str, ...]) -> Labels:
    """The task and the labels of training rows."""
    if _task_of(column, options.task) == "regression":
        return Labels("regression")
    problem = "multi_label_classification" if column.is_list else "single_label_classification"
    seen = set(column.items())
    in_order = sorted(seen) if column.kind == "words" else map(str, sorted(seen, key=float))
    names = columns.one_hot or options.named_labels or column.known or tuple(in_order)
    if not names:
        raise UserError(f"No training row has a label. Name another column than {column.name!r} with --label-column.")
    return Labels(problem, trained if set(trained) == set(names) else names)


def _task_of(column: _Column, asked: str | None) -> str:
    """The task that was asked for, or that labels are written for.

    Raises:
        UserError: they may be written for either.
    """
    if asked is not None:
        return asked
    if column.kind == "words" or column.is_list:
        is_text = column.table.info.builder_name == "csv" and column.known is None and not column.is_list
        commas = [cell for cell in column.present if is_text and _COMMA.fullmatch(cell)]
        if commas and all(_NUMBER.fullmatch(cell) for cell in {*column.present} - {*commas}):
            raise UserError(
                f"Column {column.name!r} has {commas[0]}, which may be a number. Write numbers with a decimal point "
                "and nothing between thousands; --task classification takes such cells as words."
            )
        return "classification"
    if column.kind == "real":
        return "regression"
    if (distinct := len(set(column.present))) > MOST_NUMBERED:
        raise UserError(
            f"Column {column.name!r} has {distinct} different whole numbers. Say what they are: --task classification, "
            "each is a label; --task regression, numbers to predict."
        )
    return "classification"


def _of_a_model(column: _Column, trained: tuple[str, ...], problem_type: str, options: Options) -> Labels:
    """The labels of a trained model, as the data calls them; refuses others where the model has no names for them."""
    if problem_type == "regression":
        return Labels(problem_type)
    labels, numbers = set(map(str, column.items())), tuple(map(str, range(len(trained))))
    if trained != tuple(f"LABEL_{number}" for number in numbers) or labels <= set(trained):
        return Labels(problem_type, trained)
    if len(options.named_labels) == len(trained):
        return Labels(problem_type, options.named_labels)
    if labels <= set(numbers) and not options.named_labels:
        return Labels(problem_type, numbers)
    raise UserError(
        f"The model has {len(trained)} labels without names (LABEL_0, ...), column {column.name!r} has "
        f"{', '.join(map(repr, sorted(labels)[:5]))}. Say what the model's labels are called, in their order: "
        f"--label-names {','.join(sorted(labels)[:5])}."
    )


# ---- the numbers ----------------------------------------------------------------------------------------------------


def _numbered(labels: Labels, column: _Column) -> list[Any]:
    """The numbers of a split's labels, as `encode_labels` returns them.

    Raises:
        UserError: a label is unknown, or of another type than the task's.
    """
    one_number, several = labels.problem_type == "regression", labels.problem_type == "multi_label_classification"
    if column.is_list != several or (one_number and column.kind == "words"):
        odd = next((value for value in column.present if not _NUMBER.fullmatch(str(value))), column.present[0])
        wanted = (
            "one number for each text" if one_number else "lists of labels" if several else "one label for each text"
        )
        raise UserError(
            f"The {column.split} data has {odd!r} in column {column.name!r}, and the task is "
            f"{labels.problem_type.replace('_', ' ')}: write {wanted}, or name another --label-column, "
            "--label-delimiter or --task."
        )
    if one_number:
        infinite = [row for row, value in enumerate(column.values) if value and math.isinf(float(value))]
        if infinite:
            place = where(column.table, infinite[0])
            raise UserError(f"{column.name!r} is infinite in {place} of the {column.split} data.")
        return [None if value is None else float(value) for value in column.values]
    numbers, result = labels.numbers(), list[Any]()
    for row, value in enumerate(column.values):
        named = () if value is None else [str(item) for item in (value if several else (value,))]
        if len(set(named)) < len(named):
            raise UserError(
                f"The {column.split} data names a label twice in {where(column.table, row)}: {value!r}. Give each text "
                "a list of the labels that apply (not a 0 or 1 for each label)."
            )
        if unknown := [label for label in named if label not in numbers]:
            raise UserError(
                f"The {column.split} data has the label {unknown[0]!r} in {where(column.table, row)}. Known are "
                f"{', '.join(map(repr, labels.names[:10]))}{', ...' * (len(labels.names) > 10)}: from the training "
                "data, the model or --label-names. Name it there, or leave such rows out."
            )
        if value is None or not several:
            result.append(numbers[named[0]] if named else None)
        else:
            result.append([float(name in named) for name in labels.names])
    return result


def standard_units(numbers: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (over n, not n - 1) of numbers, computed in float64.

    Numbers that float32 can't tell apart have a standard deviation of 1, by which one may divide.
    """
    values = np.asarray(numbers, np.float64)
    mean, std = float(values.mean()), float(values.std())
    smallest = max(abs(mean) * np.finfo(np.float32).eps, np.finfo(np.float32).tiny)
    return mean, std if std > smallest else 1.0
