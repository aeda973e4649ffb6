"""The task, and the number of each label: decided by how labels are written, never by what they look like."""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
_COMMA = re.compile(r"[+-]?\d+,\d+")
_NO_NUMBER = ("nan", "inf", "-inf")


def as_written(cells: Sequence[Any], numbers: bool = True) -> list[Any]:
    """A csv column as integers if all cells are, as floats if all are numbers, else as strings.

    With `numbers=False` floats stay strings unless all are whole: as names, 1.10 and 1.1 differ.
    """
    stripped = [cell.strip() or None if isinstance(cell, str) else cell for cell in cells]
    present = {cell for cell in stripped if cell is not None}
    if not present or not all(isinstance(cell, str) for cell in present):
        return stripped
    if all(_WHOLE.fullmatch(cell) for cell in present):
        return [None if cell is None else int(cell) for cell in stripped]
    real = any(_REAL.fullmatch(cell) for cell in present)
    if real and all(_WHOLE.fullmatch(cell) or _REAL.fullmatch(cell) or cell.lower() in _NO_NUMBER for cell in present):
        values = [None if cell is None else float(cell) for cell in stripped]
        if numbers or all(value is None or math.isnan(value) or value.is_integer() for value in values):
            return values
    return stripped


def decimal_comma(cells: Sequence[Any]) -> str | None:
    """A cell such as 5,4, where all cells are numbers if that is one."""
    present = [cell for cell in cells if isinstance(cell, str)]
    commas = [cell for cell in present if _COMMA.fullmatch(cell)]
    return commas[0] if commas and all(cell in commas or _WHOLE.fullmatch(cell) for cell in set(present)) else None


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )


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


@dataclass(frozen=True)
class LabelColumn:
    """The labels of one split as Python values: names, lists of names, or floats; None if missing."""

    name: str
    """Of the column."""
    split: str
    values: list[Any]
    kind: str
    """Type of the labels in the data: text, integer, truth or number."""
    is_list: bool
    known: tuple[str, ...] | None
    """All labels, if the data set declares them."""
    table: Dataset
    """Where they stand."""

    @cached_property
    def present(self) -> list[Any]:
        """The values that aren't missing."""
        return [value for value in self.values if value is not None]

    def items(self) -> list[Any]:
        """All labels, repeated for each text that has them."""
        return [item for value in self.present for item in value] if self.is_list else self.present

    @property
    def are_numbers(self) -> bool:
        """Whether each row has one number."""
        return self.kind in ("number", "integer") and not self.is_list

    @cached_property
    def are_whole(self) -> bool:
        """Whether labels are floats without a fraction."""
        return self.kind == "number" and all(value.is_integer() for value in self.items())

    def where(self, index: int) -> str:
        """Where a row stands."""
        return where(self.table, index)


def encode_labels(
    splits: Mapping[str, Dataset],
    columns: Columns,
    options: Options | None = None,
    *,
    label_names: Sequence[str] | None = None,
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
    labelled: list[LabelColumn] = []
    for split, table in splits.items():
        if split == "test" and not set(columns.labels) <= set(table.column_names):
            continue
        column = read_labels(table, columns, split, options.task, options.named_labels)
        missing = [row for row, value in enumerate(column.values) if value is None]
        if not column.present:
            if split == "test":
                continue
            raise UserError(f"No row of the {split} data has a label in column {columns.label!r}. {_NAME_LABELS}")
        if missing and not options.skip_missing:
            raise _missing_label(split, where(table, missing[0]), columns.label, len(missing) - 1)
        labelled.append(column)
    if columns.one_hot and all(len(value) == 1 for column in labelled for value in column.values):
        labelled = [replace(column, values=[name for (name,) in column.values], is_list=False) for column in labelled]
    labels = _decide(labelled, columns, options, label_names, problem_type)
    return labels, dict.fromkeys(splits) | {column.split: apply_labels(labels, column) for column in labelled}


def _missing_label(split: str, where: str, column: str, more: int) -> UserError:
    """The error of a row that has no label, and of so many more."""
    others = "" if not more else ", nor has 1 other" if more == 1 else f", nor have {more} others"
    return UserError(
        f"Missing label in the {split} data: {where} has none in column {column!r}{others}. Fill it in, or leave such "
        "rows out with --skip-missing."
    )


def read_labels(
    table: Dataset, columns: Columns, split: str, task: str | None = None, said: tuple[str, ...] = ()
) -> LabelColumn:
    """The label column of a split.

    Args:
        table: the split.
        columns: where the labels are.
        split: its name.
        task: classification or regression, if that's known.
        said: what 0, 1, ... mean, by `--label-names`.

    Raises:
        UserError: labels are of mixed types, or not in the columns.
    """
    require_columns(table, columns.labels, "--label-column", split)
    name, known = columns.label, None
    if columns.one_hot:
        values: list[Any] = _of_one_hot(table, columns)
    else:
        values, known = table[name][:], classes_of(table, name)
        if columns.label_delimiter is not None:
            values = [_parts_of(value, columns.label_delimiter) for value in values]
        elif table.info.builder_name == "csv":
            values = as_written(values, numbers=task != "classification")
    present = [value for value in values if not is_missing(value)]
    is_list = any(isinstance(value, list | tuple) for value in present)
    if is_list and not all(isinstance(value, list | tuple) for value in present):
        raise UserError(
            f"Mixed label types in the {split} data: column {name!r} has both lists and single labels. Write all as "
            "lists for several labels per text, or none."
        )
    if is_list and known is None and (length := _marks_per_list(present)):
        values = [None if is_missing(value) else _marked(value, said, length, name) for value in values]
    items = [item for value in present for item in value] if is_list else present
    kind = "text" if known is not None else _kind_of_labels(items, f"in the {split} data: column {name!r}")
    declared = known is not None
    if said and task != "regression" and (declared or kind in ("integer", "number")):
        known = said

    def label(cell: Any) -> Any:
        if known is not None and not isinstance(cell, str) and cell == int(cell):
            # -1 of a declared label: none, as in GLUE
            return known[int(cell)] if 0 <= cell < len(known) else None if declared else str(int(cell))
        return float(cell) if kind == "number" else str(cell).strip()

    labels = [
        None if is_missing(value) else [label(item) for item in value] if is_list else label(value) for value in values
    ]
    return LabelColumn(name, split, labels, kind if known is None else "text", is_list, known, table)


def _marks_per_list(lists: Sequence[Sequence[Any]]) -> int:
    """The length of the lists, where all are equally long, of more than one item, and hold 0 and 1 alone; else 0."""
    (length, *others) = {len(items) for items in lists}
    marks = (
        not others and length > 1 and all(item in (0, 1) and not isinstance(item, str) for it in lists for item in it)
    )
    return length if marks else 0


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


def _kind_of_labels(labels: Iterable[Any], where: str) -> str:
    examples: dict[str, Any] = {}
    for label in labels:
        examples.setdefault(_kind(label), label)
    kinds = {"number"} if set(examples) == {"integer", "number"} else set(examples)
    if len(kinds) > 1 or "other" in kinds:
        raise UserError(
            f"Mixed label types {where} has {' and '.join(map(repr, examples.values()))}. Write all labels in one way: "
            "all strings, all whole numbers, or all real numbers."
        )
    return next(iter(kinds), "text")


def _parts_of(value: Any, delimiter: str) -> Any:
    """The labels of one cell; an empty cell says that none applies."""
    if value is None:
        return []
    return [part.strip() for part in value.split(delimiter) if part.strip()] if isinstance(value, str) else value


def _of_one_hot(table: Dataset, columns: Columns) -> list[list[str]]:
    """For each row the names of the columns that hold 1."""
    labels: list[list[str]] = [[] for _ in range(len(table))]
    for name in columns.one_hot:
        for index, cell in enumerate(table[name][:]):
            mark = _MARKS.get(str(cell).strip().lower())
            if mark is None:
                raise UserError(
                    f"--label-column names several columns of 0 and 1: column {name!r} has {cell!r:.40} in "
                    f"{where(table, index)}."
                )
            if mark:
                labels[index].append(name)
    return labels


def _kind(value: Any) -> str:
    # bool is a subclass of int, so it comes first.
    for kind, types in (("truth", bool), ("integer", int), ("number", float), ("text", str)):
        if isinstance(value, types):
            return kind
    return "other"


def _decide(
    labelled: Sequence[LabelColumn],
    columns: Columns,
    options: Options,
    trained: Sequence[str] | None,
    problem_type: str | None,
) -> Labels:
    if not labelled:
        if not trained:
            raise UserError(
                "The data has no labels, and no trained model says what they are. Give labelled training data."
            )
        return Labels(problem_type or "single_label_classification", tuple(trained))
    source = next((column for column in labelled if column.split == "train"), labelled[0])
    is_train, task = source.split == "train", options.task
    if not is_train and problem_type is not None:
        _check_labels_fit(source, problem_type)
        task = "regression" if problem_type == "regression" else "classification"
    if (task or _task_of(source)) == "regression":
        if not source.are_numbers:
            words = [
                value for value in source.present if isinstance(value, str) and isinstance(as_written([value])[0], str)
            ]
            raise UserError(
                f"--task regression needs one number per text, column {source.name!r} has "
                f"{(words or source.present)[0]!r}. Leave it out to predict labels."
            )
        return Labels("regression")
    problem = "multi_label_classification" if source.is_list else "single_label_classification"
    if not is_train and trained:
        return Labels(problem, _names_for(source, tuple(trained), options.named_labels))
    names = columns.one_hot or options.named_labels or _label_names(source)
    if trained and set(trained) == set(names):
        names = tuple(trained)
    if not names:
        raise UserError(f"No training example has a label in column {source.name!r}. {_NAME_LABELS}")
    if len(names) < 2 and problem == "single_label_classification":
        raise UserError(
            f"All training examples have the label {names[0]!r}. Give examples of at least two labels, or the right "
            "column with --label-column."
        )
    if is_train:
        _warn_of_odd_labels(source)
    return Labels(problem, names)


def _names_for(column: LabelColumn, trained: tuple[str, ...], said: tuple[str, ...]) -> tuple[str, ...]:
    """What a trained model's labels are called in the data: as in the model, unless it has no names for them."""
    labels = {_as_label(item, dict.fromkeys(trained, 0)) for item in column.items()}
    if trained != tuple(f"LABEL_{number}" for number in range(len(trained))) or labels <= set(trained):
        return trained
    if len(said) == len(trained):
        return said
    numbers = tuple(map(str, range(len(trained))))
    if labels <= set(numbers) and not said:
        return numbers
    raise UserError(
        f"The model has {len(trained)} labels without names (LABEL_0, ...), column {column.name!r} has "
        f"{', '.join(map(repr, sorted(labels)[:5]))}. Say what the model's labels are called, in their order: "
        f"--label-names {','.join(sorted(labels)[:5])}."
    )


def _task_of(column: LabelColumn) -> str:
    """The task that labels are written for.

    Raises:
        UserError: they may be written for either.
    """
    if not column.are_numbers:
        cell = (
            decimal_comma(column.present) if column.table.info.builder_name == "csv" and column.known is None else None
        )
        if cell is None:
            return "classification"
        raise UserError(
            f"Column {column.name!r} has {cell}, which may be a number. Write numbers with a point, as "
            f"{cell.replace(',', '.')}; --task classification takes such cells as words."
        )
    if column.kind == "number" and not column.are_whole:
        return "regression"
    if (distinct := len(set(column.present))) > MOST_NUMBERED:
        raise UserError(
            f"Column {column.name!r} has {distinct} different whole numbers. Say what they are: --task classification, "
            "each is a label; --task regression, numbers to predict."
        )
    return "classification"


def _warn_of_odd_labels(column: LabelColumn) -> None:
    """Warns of labels that look like one label in two spellings, or like a missing cell."""
    counts = Counter(map(str, column.items()))
    spellings: dict[str, list[str]] = {}
    for label in counts:
        spellings.setdefault(label.casefold(), []).append(label)
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
            "with --label-column."
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
