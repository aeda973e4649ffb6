"""The task, and the number of each label: decided by how labels are written, never by what they look like."""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from datasets import Dataset

from ..errors import UserError
from ..options import Options
from .columns import Columns, require_columns
from .reading import classes_of, where

logger = logging.getLogger(__name__)

MOST_NUMBERED = 50
"""More different whole numbers than this need --task."""
_NAME_LABELS = "Name the right one with --label-column."
_MISSING_VALUES = {"NA", "N/A", "#N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "\\N"}
"""What R, pandas, databases and spreadsheets write for a missing cell."""
_MARKS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""What columns of 0 and 1 may hold."""
# A csv has no types. 007, +5 and 1e5 may be names, so they stay strings.
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_REAL = re.compile(r"[+-]?(0|[1-9]\d*)\.\d*([eE][+-]?\d+)?|[+-]?\.\d+([eE][+-]?\d+)?|[+-]?[1-9]\d*[eE][+-]\d+")
_COMMA = re.compile(r"[+-]?\d[\d.]*,\d+")
_NO_NUMBER = ("nan", "inf", "-inf")


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

    @property
    def are_numbers(self) -> bool:
        """Whether each row has one number."""
        return self.kind != "words" and not self.is_list


def encode_labels(
    splits: Mapping[str, Dataset],
    columns: Columns,
    options: Options | None = None,
    *,
    label_names: Sequence[str] = (),
    problem_type: str | None = None,
) -> tuple[Labels, dict[str, list[Any] | None]]:
    """Decides the task and numbers the labels from the training split, for all splits.

    Words and whole numbers (1.0 is whole) are one class per text, lists several, numbers with fractions a regression.
    Whole numbers keep their order, words are sorted; `--label-names` says what 0, 1, ... mean, in order.

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
    labelled: list[_Column] = []
    for split, table in splits.items():
        if split == "test" and not set(columns.labels) <= set(table.column_names):
            continue
        column = _read(table, columns, split, options)
        missing = [row for row, value in enumerate(column.values) if value is None]
        if len(missing) == len(table):
            if split == "test":
                continue
            raise UserError(f"No row of the {split} data has a label in column {columns.label!r}. {_NAME_LABELS}")
        if missing and not options.skip_missing:
            more = len(missing) - 1
            others = "" if not more else ", nor has 1 other" if more == 1 else f", nor have {more} others"
            raise UserError(
                f"Missing label in the {split} data: {where(table, missing[0])} has none in column {columns.label!r}"
                f"{others}. Fill it in, or leave such rows out with --skip-missing."
            )
        labelled.append(column)
    if columns.one_hot and all(len(value) == 1 for column in labelled for value in column.values):
        labelled = [replace(column, values=[name for (name,) in column.values], is_list=False) for column in labelled]
    if not labelled:
        if not label_names:
            raise UserError(
                "The data has no labels, and no trained model says what they are. Give labelled training data."
            )
        return Labels(problem_type or "single_label_classification", tuple(label_names)), dict.fromkeys(splits)
    source = next((column for column in labelled if column.split == "train"), labelled[0])
    if source.split == "train":
        labels = _of_training(source, columns, options, tuple(label_names))
    else:
        labels = _of_a_model(source, tuple(label_names), problem_type, options)
    return labels, dict.fromkeys(splits) | {column.split: _numbered(labels, column) for column in labelled}


# ---- reading --------------------------------------------------------------------------------------------------------


def _read(table: Dataset, columns: Columns, split: str, options: Options) -> _Column:
    """The label column of a split."""
    require_columns(table, columns.labels, "--label-column", split)
    name, said = columns.label, options.named_labels
    if columns.one_hot:
        return _Column(name, split, table, _of_one_hot(table, columns.one_hot), True, "words")
    cells, known = table[name][:], classes_of(table, name)
    if columns.label_delimiter is not None:
        cells = [_parts_of(cell, columns.label_delimiter) for cell in cells]
    elif table.info.builder_name == "csv":
        cells = _as_written(cells, numbers=options.task != "classification")
    cells = [None if is_missing(cell) else cell for cell in cells]
    present = [cell for cell in cells if cell is not None]
    is_list = any(isinstance(cell, list) for cell in present)
    if is_list and known is None and (length := _marks_per_list(present)):
        cells = [None if cell is None else _marked(cell, said, length, name) for cell in cells]
        present = [cell for cell in cells if cell is not None]
    items = [item for cell in present for item in cell] if is_list else present
    if odd := [item for item in items if not isinstance(item, str | int | float)]:
        raise UserError(
            f"Column {name!r} of the {split} data has {odd[0]!r:.60}, which is no label. Write words or numbers."
        )
    kind = "words" if known is not None or any(isinstance(item, str | bool) for item in items) else "whole"
    if kind == "whole" and any(not float(item).is_integer() for item in items):
        kind = "real"
    declared = known is not None
    if said and options.task != "regression" and kind != "real" and (declared or kind == "whole"):
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
    stripped = [cell.strip() or None if isinstance(cell, str) else cell for cell in cells]
    present = {cell for cell in stripped if cell is not None}
    if present and all(_WHOLE.fullmatch(cell) for cell in present):
        return [None if cell is None else int(cell) for cell in stripped]
    real = any(_REAL.fullmatch(cell) for cell in present)
    if real and all(_WHOLE.fullmatch(cell) or _REAL.fullmatch(cell) or cell.lower() in _NO_NUMBER for cell in present):
        values = [None if cell is None else float(cell) for cell in stripped]
        if numbers or all(value is None or math.isnan(value) or value.is_integer() for value in values):
            return values
    return stripped


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )


def _parts_of(cell: Any, delimiter: str) -> Any:
    """The labels of one cell; an empty cell says that none applies."""
    if cell is None:
        return []
    return [part.strip() for part in cell.split(delimiter) if part.strip()] if isinstance(cell, str) else cell


def _of_one_hot(table: Dataset, names: Sequence[str]) -> list[list[str]]:
    """For each row the names of the columns that hold 1."""
    labels: list[list[str]] = [[] for _ in range(len(table))]
    for name in names:
        for row, cell in enumerate(table[name][:]):
            mark = _MARKS.get(str(cell).strip().lower())
            if mark is None:
                raise UserError(
                    f"--label-column names several columns of 0 and 1: column {name!r} has {cell!r:.40} in "
                    f"{where(table, row)}."
                )
            if mark:
                labels[row].append(name)
    return labels


def _marks_per_list(lists: Sequence[Sequence[Any]]) -> int:
    """The length of the lists, where all are equally long, of more than one item, and hold 0 and 1 alone; else 0."""
    (length, *others) = {len(items) for items in lists}
    marks = not others and length > 1
    return length if marks and all(type(item) is not str and item in (0, 1) for it in lists for item in it) else 0


def _marked(marks: Sequence[Any], said: tuple[str, ...], length: int, column: str) -> list[str]:
    """The names of the labels that a list of 0 and 1 marks."""
    if len(said) != length:
        names = ",".join("abcdefgh"[:length]) if length <= 8 else "a,b,..."
        raise UserError(
            f"Column {column!r} holds lists of {length} numbers 0 and 1, such as {list(marks)}: a mark for each label, "
            f"or the names of labels? For marks, name the {length} labels in order: --label-names {names}. Else write "
            "the labels' names as strings."
        )
    return [name for name, mark in zip(said, marks, strict=True) if mark]


# ---- the task and the names -----------------------------------------------------------------------------------------


def _of_training(column: _Column, columns: Columns, options: Options, trained: tuple[str, ...]) -> Labels:
    """The task and the labels of training rows."""
    if _task_of(column, options.task) == "regression":
        return Labels("regression")
    problem = "multi_label_classification" if column.is_list else "single_label_classification"
    names = columns.one_hot or options.named_labels or column.known or _sorted_names(column)
    if set(trained) == set(names):
        names = trained
    if not names:
        raise UserError(f"No training example has a label in column {column.name!r}. {_NAME_LABELS}")
    if len(names) < 2 and not column.is_list:
        raise UserError(
            f"All training examples have the label {names[0]!r}. Give examples of at least two labels, or the right "
            "column with --label-column."
        )
    _warn_of_odd_labels(column)
    return Labels(problem, names)


def _of_a_model(column: _Column, trained: tuple[str, ...], problem_type: str | None, options: Options) -> Labels:
    """The labels of a trained model, as the data calls them.

    Raises:
        UserError: labels don't fit the model's task, or it has no names for them.
    """
    problem_type = problem_type or "single_label_classification"
    single = not column.is_list and column.kind != "real"
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
            "with --label-column."
        )
    if problem_type == "regression":
        return Labels(problem_type)
    labels = set(column.items())
    if trained != tuple(f"LABEL_{number}" for number in range(len(trained))) or labels <= set(trained):
        return Labels(problem_type, trained)
    if len(options.named_labels) == len(trained):
        return Labels(problem_type, options.named_labels)
    numbers = tuple(map(str, range(len(trained))))
    if labels <= set(numbers) and not options.named_labels:
        return Labels(problem_type, numbers)
    raise UserError(
        f"The model has {len(trained)} labels without names (LABEL_0, ...), column {column.name!r} has "
        f"{', '.join(map(repr, sorted(labels)[:5]))}. Say what the model's labels are called, in their order: "
        f"--label-names {','.join(sorted(labels)[:5])}."
    )


def _task_of(column: _Column, asked: str | None) -> str:
    """The task that labels are written for, or that was asked for.

    Raises:
        UserError: they may be written for either, or aren't for the one that was asked for.
    """
    if asked == "regression" and not column.are_numbers:
        words = [value for value in column.present if isinstance(value, str) and _as_written([value]) == [value]]
        raise UserError(
            f"--task regression needs one number per text, column {column.name!r} has "
            f"{(words or column.present)[0]!r}. Leave it out to predict labels."
        )
    if asked is not None:
        return asked
    if not column.are_numbers:
        is_text = column.table.info.builder_name == "csv" and column.known is None
        if is_text and (cell := _decimal_comma(column.present)):
            raise UserError(
                f"Column {column.name!r} has {cell}, which may be a number. Write numbers with a decimal point and "
                "nothing between thousands; --task classification takes such cells as words."
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


def _decimal_comma(cells: Sequence[Any]) -> str | None:
    """A cell such as 5,4, where all cells are numbers if that is one."""
    commas = [cell for cell in cells if isinstance(cell, str) and _COMMA.fullmatch(cell)]
    if not commas:
        return None
    others = {*cells} - {*commas}
    return commas[0] if all(_WHOLE.fullmatch(cell) or _REAL.fullmatch(cell) for cell in others) else None


def _sorted_names(column: _Column) -> tuple[str, ...]:
    seen = set(column.items())
    if column.kind == "words":
        return tuple(sorted(seen))
    return tuple(map(str, sorted(seen, key=float)))


def _warn_of_odd_labels(column: _Column) -> None:
    """Warns of labels that look like one label in two spellings, like numbers among words, or like a missing cell."""
    counts = Counter(map(str, column.items()))
    spellings: dict[str, list[str]] = {}
    for label in counts:
        spellings.setdefault(label.casefold(), []).append(label)
    if alike := [labels for labels in spellings.values() if len(labels) > 1]:
        logger.warning(
            f"Column {column.name!r} has the labels {' and '.join(map(repr, alike[0]))}, which count as different "
            "labels."
        )
    numbers = [label for label in counts if _WHOLE.fullmatch(label) or _REAL.fullmatch(label)]
    if numbers and (words := [label for label in counts if label not in numbers]):
        logger.warning(
            f"Column {column.name!r} has numbers, such as {numbers[0]!r}, and words, such as {words[0]!r}: each counts "
            "as a label."
        )
    if nothing := sorted(_MISSING_VALUES.intersection(counts)):
        logger.warning(
            f"Column {column.name!r} has the label {nothing[0]!r} in {counts[nothing[0]]:,} rows, which counts as a "
            "label. If it means that there is none, empty these cells and give --skip-missing."
        )


# ---- the numbers ----------------------------------------------------------------------------------------------------


def _numbered(labels: Labels, column: _Column) -> list[Any]:
    """The numbers of a split's labels, as `encode_labels` returns them.

    Raises:
        UserError: a label is unknown, or of another type than those of the training data.
    """
    several, numbers = labels.problem_type == "multi_label_classification", labels.numbers()
    if labels.problem_type == "regression":
        return _finite_numbers(column)
    if column.is_list != several:
        raise UserError(
            f"Mixed label types: column {column.name!r} has {column.present[0]!r} in the {column.split} data, unlike "
            f"what was trained on ({'lists of labels' if several else 'one label per text'}). Write both alike."
        )
    result: list[Any] = []
    unknown: list[tuple[str, int]] = []
    for row, value in enumerate(column.values):
        named = () if value is None else [str(item) for item in (value if several else (value,))]
        if column.kind == "whole":  # 1 is the 1.0 of a training column that has 0.5, too
            named = [label if label in numbers or f"{label}.0" not in numbers else f"{label}.0" for label in named]
        unknown += [(label, row) for label in named if label not in numbers]
        if len(set(named)) < len(named):
            raise UserError(
                f"The {column.split} data names a label twice in {where(column.table, row)}: {value!r}. Give each text "
                "a list of the labels that apply (not a 0 or 1 for each label)."
            )
        if value is None or not several:
            result.append(numbers.get(named[0]) if named else None)
        else:
            result.append([float(name in named) for name in labels.names])
    if unknown:
        ((label, count),) = Counter(label for label, _ in unknown).most_common(1)
        first = next(row for name, row in unknown if name == label)
        often = "once" if count == 1 else f"{count} times"
        if column.split == "train":  # all that is there is known, unless an option names the labels
            raise UserError(
                f"The data has the label {label!r} ({often}, first in {where(column.table, first)}), which "
                f"--label-names doesn't list: {', '.join(map(repr, labels.names[:10]))}. Name what 0, 1, ... mean, or "
                "leave it out."
            )
        raise UserError(
            f"The {column.split} data has the label {label!r} ({often}, first in {where(column.table, first)}), "
            f"which training never saw. It knows {', '.join(map(repr, labels.names[:10]))}"
            f"{', ...' if len(labels.names) > 10 else ''}. Add examples to the training data or leave these rows out."
        )
    return result


def _finite_numbers(column: _Column) -> list[Any]:
    if not column.are_numbers:
        raise UserError(
            f"Mixed label types: column {column.name!r} has numbers in the training data and {column.present[0]!r} in "
            f"the {column.split} data. Write numbers in both."
        )
    values = [None if value is None else float(value) for value in column.values]
    if bad := [row for row, value in enumerate(values) if value is not None and not math.isfinite(value)]:
        raise UserError(
            f"The {column.split} data has {values[bad[0]]} in column {column.name!r}, {where(column.table, bad[0])}. "
            "Give a finite number."
        )
    return values


def standard_units(numbers: Iterable[float | None]) -> tuple[float, float]:
    """Mean and standard deviation (over n, not n - 1) of numbers, computed in float64; None doesn't count.

    Numbers that float32 can't tell apart have a standard deviation of 1, by which one may divide.
    """
    values = np.fromiter((number for number in numbers if number is not None), dtype=np.float64)
    mean, std = float(values.mean()), float(values.std())
    smallest = max(abs(mean) * np.finfo(np.float32).eps, np.finfo(np.float32).tiny)
    return mean, std if std > smallest else 1.0
