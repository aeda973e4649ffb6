"""The problem type, and the number of each label: decided by how labels are written, never by what they look like.

A label is its name, a string, from the file to its number: of one label a text, of several, and of numbers to predict.
"""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np

from ..errors import UserError, spell
from ..options import Options
from .columns import Columns, is_missing, require_columns, written
from .reading import DELIMITERS, Dialect
from .tables import Table, listed

MOST_NUMBERED = 50
"""More different whole numbers than this need `problem_type`."""
FAR_FROM_ZERO = 10_000
"""Numbers whose mean is more than so many standard deviations from 0 aren't learned: float32 has 7 digits."""
GREATEST = 1e37
"""The greatest number to predict; float32 ends at 3.4e38, and differences must fit."""
_NEXT_TO_IGNORED = float(np.nextafter(np.float32(-100), np.float32(0)))
"""Stands for -100, which the Trainer takes for no label, so that the loss would be divided by too few."""
_MARKS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""What columns of 0 and 1 may hold."""
# A csv has no types. 007, +5 and 1e5 may be names, so they are words.
_WHOLE = re.compile(r"0|-?[1-9]\d{0,18}")
_NUMBER = re.compile(
    r"0|-?[1-9]\d{0,18}|[+-]?(0|[1-9]\d*)\.\d*(e[+-]?\d+)?|[+-]?\.\d+(e[+-]?\d+)?|[+-]?[1-9]\d*e[+-]\d+|nan|-?inf", re.I
)
_FOR_PEOPLE = re.compile(r"[+-]?\d[\d.]*,[\d.,]*\d ?%?|[+-]?\d[\d.]* ?%")
"""Numbers with decimal commas, thousands or percent signs."""


@dataclass(frozen=True)
class Known:
    """Knowledge that a trained classifier has of its data."""

    columns: Columns | None = None
    label_names: tuple[str, ...] = ()
    """Its labels, in order. They keep their order if they are the data's. Where there is no training split, labels must
    be among them; 0, 1, ... count only where they are LABEL_0, LABEL_1, ..."""
    problem_type: str | None = None
    trained_on: frozenset[int] = frozenset()
    """The marks of the texts that it was trained on, where these are known."""
    dialect: Dialect | None = None
    """How its training was told to read its files."""


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
        """Says the number of labels, and the first ones."""
        listed = ", ".join(self.names[:5]) + ", ..." * (len(self.names) > 5)
        return f"{len(self.names)} labels ({listed})" if self.names else "numbers to predict"


@dataclass(frozen=True)
class _Writing:
    """The form of labels that those of a split must have: the training rows', or else a model's.

    Attributes:
        trained: the labels of the model to go on from, whose names keep their form.
        spelt: labels that stay as they are written, though they are numbers.
        numbered: lists hold the numbers of labels, so that those of 0 and 1 alone mark none.
    """

    trained: tuple[str, ...]
    spelt: frozenset[str] = frozenset()
    numbered: bool = False


@dataclass(frozen=True)
class _Column:
    """The labels of one split.

    Attributes:
        name, split, table: where they stand.
        rows: the names of each row's labels; None if it has none.
        is_list: whether a row has several.
        kind: how they are written: `words`, `whole` numbers, or `real` ones, of which one has a fraction.
        known: all labels, if the data set declares them or `label_names` does.
        numbered: they are lists of numbers that name labels, or that `label_names` names.
    """

    name: str
    split: str
    table: Table
    rows: list[list[str] | None]
    is_list: bool
    kind: str = "words"
    known: tuple[str, ...] | None = None
    numbered: bool = False

    @property
    def seen(self) -> set[str]:
        """All labels that a row has."""
        return set(chain.from_iterable(row for row in self.rows if row is not None))


def encode_labels(
    splits: Mapping[str, Table], columns: Columns, options: Options, known: Known
) -> tuple[Labels, dict[str, list[Any] | None]]:
    """Decides the problem type and numbers the labels from the training split, for all splits.

    Words and whole numbers (1.0 is whole) are one class per text, lists and columns of 0 and 1 several, numbers with
    fractions a regression.
    Whole numbers keep their order, words are sorted; `label_names` says what 0, 1, ... mean, or the order of words.

    Args:
        splits: any of train, validation and test. Test alone may lack labels.
        columns: where the labels are.
        options: the problem type, names for numbered labels, and whether rows without a label are left out.
        known: of a trained model.

    Returns:
        The labels, and for each split the numbers to train on (None where it has no labels): int, a list of 0.0 and
        1.0 for each label, or float; None for a row that has no label and is left out.

    Raises:
        UserError: a label is missing, unknown, or could be meant in two ways.
    """
    trained, problem_type = known.label_names, known.problem_type or "single_label_classification"
    labelled = _labelled(splits, columns, options, trained)
    if not labelled:
        return Labels(problem_type, trained), dict.fromkeys(splits)
    if "train" in splits:
        labels = _of_training(labelled[0], columns, options, trained)
    else:
        labels = _of_a_model(labelled[0], trained, problem_type, options)
        if columns.one_hot and (lacking := [name for name in labels.names if name not in columns.one_hot]):
            wanted = f"has no column for the model's label {lacking[0]!r}. Name one for each."
            raise UserError(wanted, parameter="label_column")
    if options.named_labels and _forms(options.named_labels) != _forms(labels.names):
        holds = f"can't be: column {columns.label!r} holds {labels.sentence()}. Name these, or leave it out."
        raise UserError(holds, parameter="label_names", value=options.label_names)
    return labels, dict.fromkeys(splits) | {column.split: _numbered(labels, column) for column in labelled}


def _labelled(
    splits: Mapping[str, Table], columns: Columns, options: Options, trained: tuple[str, ...]
) -> list[_Column]:
    """The labels of the splits that have any, those of training rows first: the others write theirs as these do."""
    labelled: list[_Column] = []
    numbered = len(trained) > 2 and all(map(_WHOLE.fullmatch, trained))
    writing = _Writing(trained) if "train" in splits else _Writing(trained, frozenset(trained), numbered)
    for split in sorted(splits, key=lambda split: split != "train"):
        table = splits[split]
        if split == "test" and not set(columns.labels) & set(table.names):
            continue
        column = _read(table, columns, split, options, writing)
        missing = [row for row, names in enumerate(column.rows) if names is None]
        if split == "test" and len(missing) == len(table):
            continue
        if len(missing) == len(table) or not options.skip_missing:
            table.refuse_missing(split, missing, "label", f"none in column {columns.label!r}")
        labelled.append(column)
        if split == "train":
            writing = _Writing(trained, frozenset(column.seen), column.numbered)
    return labelled


# ---- reading --------------------------------------------------------------------------------------------------------


def _read(table: Table, columns: Columns, split: str, options: Options, writing: _Writing) -> _Column:
    """The label column of a split, written as others are."""
    name, spelt = columns.label, writing.spelt
    require_columns(table, columns.labels, "label_column", split)
    if columns.one_hot:
        return _Column(name, split, table, _of_one_hot(table, columns.one_hot), True)
    if options.label_column is None:
        _refuse_answers(table, name)
    cells, is_numeric = _cells_of_labels(table, name, columns.label_delimiter, spelt)
    is_list = any(isinstance(cell, list) for cell in cells)
    rows = cells if is_list else [None if cell is None else [cell] for cell in cells]
    declared = table.classes(name)
    if is_list and declared is None and _are_marks(rows, writing.numbered):
        rows = _names_of_marks(rows, options.named_labels, name)
    kind = _kind_of(list(chain.from_iterable(filter(None, rows))), is_numeric, f"Column {name!r} of the {split} data")
    if is_list and kind == "real" and columns.label_delimiter is None:
        raise UserError(
            f"Column {name!r} of the {split} data has lists of numbers with fractions. List the names of the labels "
            f"that apply to each text, or give columns of 0 and 1: {spell('label_column', 'a,b')}."
        )
    known = declared or _said_of_numbers(kind, options)
    exact = spelt if known is None else frozenset(known)  # which may begin or end with blanks
    forms = {one_form(form): form for form in (*exact, *options.named_labels, *writing.trained)}

    def name_of(item: Any) -> str:
        spelling = _name_of(item, kind, known, spelt)
        return item if item in exact else forms.get(spelling, spelling)

    names = [None if row is None else [*map(name_of, row)] for row in rows]
    writes = kind if known is None else "words"
    return _Column(name, split, table, names, is_list, writes, known, is_list and kind == "whole")


def _cells_of_labels(table: Table, name: str, delimiter: str | None, spelt: frozenset[str]) -> tuple[list[Any], bool]:
    """The cells of a column of labels, None where it has none; and True where they are numbers in words."""
    cells = [None if is_missing(cell) else cell for cell in table.class_names(name)]
    if delimiter is not None:
        return _parted(cells, delimiter), False
    if not _are_numbers(table, cells):
        return cells, False
    # nan is no label, unless one is called so
    return [None if cell is None or (cell not in spelt and math.isnan(float(cell))) else cell for cell in cells], True


def _refuse_answers(table: Table, name: str) -> None:
    """Refuses a column that nobody named where the table seems to hold a model's answers."""
    if {f"input_{name}", "confidence"} & {*table.names}:
        way_out = f"Name the column of the labels with {spell('label_column')}."
        raise UserError(f"{name!r} seems to hold answers of `hf-posenc predict`. {way_out}")


def _are_numbers(table: Table, cells: list[Any]) -> bool:
    """True where all words of a file without types are numbers."""
    if table.kind not in DELIMITERS:
        return False
    return all(_NUMBER.fullmatch(cell.strip()) for cell in cells if cell is not None)


def _parted(cells: list[Any], delimiter: str) -> list[Any]:
    """A list of labels for each cell, an empty one for none: none applies. Lists stay as they are."""
    if any(isinstance(cell, list) for cell in cells):
        return cells
    parted = [written(cell).split(delimiter) for cell in cells]
    return [[part for part in map(str.strip, parts) if part] for parts in parted]


def _kind_of(items: list[Any], is_numeric: bool, column: str) -> str:
    """The way labels are written; see `_Column`. `is_numeric`: as words that are numbers.

    Raises:
        UserError: one is no label.
    """
    if odd := [item for item in items if not isinstance(item, str | int | float)]:
        raise UserError(f"{column} has {odd[0]!r:.60}, which is no label, word or number.")
    if not is_numeric and any(isinstance(item, str | bool) for item in items):
        return "words"
    return "whole" if all(float(item).is_integer() for item in items) else "real"


def _said_of_numbers(kind: str, options: Options) -> tuple[str, ...] | None:
    """The names that `label_names` gives 0, 1, ...; None: nothing, or they are numbers themselves, which name those."""
    said = options.named_labels
    if not said or kind != "whole" or options.problem_type == "regression":
        return None
    return None if any(map(_WHOLE.fullmatch, said)) else said


def one_form(name: str) -> str:
    """A name in NFC: letters with accents are written in two ways."""
    return unicodedata.normalize("NFC", name)


def _forms(names: Iterable[str]) -> set[str]:
    return set(map(one_form, names))


def name_in_memory(label: Any) -> str:
    """The name of a label in memory: as of a file, but blanks at its ends belong to it."""
    return one_form(written(label))


def _name_of(item: Any, kind: str, known: tuple[str, ...] | None, spelt: frozenset[str]) -> str:
    """A label's name: of a known one its own, of another as it is written, or as a whole number is."""
    spelling = one_form(str(item).strip())
    if kind != "whole" or (known is None and spelling in spelt):
        return spelling
    is_exact = isinstance(item, int) or _WHOLE.fullmatch(spelling)
    whole = int(spelling) if is_exact else int(float(spelling))
    if known is not None and 0 <= whole < len(known):
        return known[whole]
    return str(whole)


def _of_one_hot(table: Table, names: Sequence[str]) -> list[list[str] | None]:
    """For each row the names of the columns that hold 1; None if a cell is blank."""
    rows: list[list[str] | None] = []
    for row, cells in enumerate(zip(*(table.cells(name) for name in names), strict=True)):
        marks = [None if is_missing(cell) else _MARKS.get(str(cell).strip().lower(), cell) for cell in cells]
        if odd := [name for name, mark in zip(names, marks, strict=True) if mark not in (None, False, True)]:
            cell = f"{cells[names.index(odd[0])]!r:.40} in {table.where(row)}"
            what = f"names several columns of 0 and 1: column {odd[0]!r} has {cell}."
            raise UserError(what, parameter="label_column")
        rows.append(None if None in marks else list(compress(names, marks)))
    return rows


def _are_marks(rows: list[Any], numbered: bool) -> bool:
    """True for lists that hold 0 and 1 alone and are equally long, of more than one item.

    Where lists hold numbers of labels, two may be the labels 0 and 1; of three one would be there twice.
    """
    lists = [row for row in rows if row is not None]
    length = len(lists[0])
    if length < (3 if numbered else 2) or any(len(marks) != length for marks in lists):
        return False
    return not any(isinstance(item, str) or item not in (0, 1) for item in chain.from_iterable(lists))


def _names_of_marks(rows: list[Any], said: tuple[str, ...], column: str) -> list[Any]:
    """Lists of 0 and 1 as the names that they mark."""
    first = next(row for row in rows if row is not None)
    length = len(first)
    if len(said) != length:
        raise UserError(
            f"Column {column!r} holds lists of {length} numbers 0 and 1, such as {first}. If they mark labels, name "
            f"these {length} in order: {spell('label_names', 'a,b,...')}; if they are labels, write strings."
        )
    return [None if row is None else list(compress(said, row)) for row in rows]


# ---- the problem type and the names ------------------------------------------------------------------------------


def _of_training(column: _Column, columns: Columns, options: Options, trained: tuple[str, ...]) -> Labels:
    """The problem type and the labels of training rows.

    Raises:
        UserError: they may be written for two problem types, or there is none.
    """
    problem_type = options.problem_type or _as_written(column)
    if problem_type == "regression":
        return Labels(problem_type)
    seen = sorted(column.seen)
    in_order = seen if column.kind == "words" else sorted(seen, key=float)
    forms = {one_form(name): name for name in column.known or ()}
    named = tuple(forms.get(one_form(name), name) for name in options.named_labels)
    names = columns.one_hot or named or column.known or tuple(in_order)
    if not names:
        another = spell("label_column")
        raise UserError(f"No training row has a label in column {column.name!r}. Name another one with {another}.")
    return Labels(problem_type, trained if _forms(trained) == _forms(names) else names)


def _as_written(column: _Column) -> str:
    """The problem type for which training rows are written.

    Raises:
        UserError: it may be a classification or a regression.
    """
    if column.is_list:
        return "multi_label_classification"
    if column.kind == "real":
        return "regression"
    seen = sorted(column.seen)
    classes = spell("problem_type", "single_label_classification")
    if column.kind == "words":
        odd = [name for name in seen if _FOR_PEOPLE.fullmatch(name)]
        is_text = column.table.kind in DELIMITERS and column.known is None
        if is_text and odd and all(_NUMBER.fullmatch(name) or name in odd for name in seen):
            raise UserError(
                f"Column {column.name!r} has {odd[0]}, which may be a number. Write numbers with a decimal point "
                f"alone, such as 1234.5; or, if these are words, give {classes}."
            )
    elif len(seen) > MOST_NUMBERED:
        raise many_numbers(f"Column {column.name!r} has", len(seen))
    return "single_label_classification"


def many_numbers(holder: str, count: int) -> UserError:
    """The error of more than `MOST_NUMBERED` whole numbers of which nobody says what they are."""
    classes, numbers = (spell("problem_type", kind) for kind in ("single_label_classification", "regression"))
    says = f"Say what they are: {classes}, labels; or {numbers}, numbers to predict."
    return UserError(f"{holder} {count} different whole numbers. {says}")


def _of_a_model(column: _Column, trained: tuple[str, ...], problem_type: str, options: Options) -> Labels:
    """The labels of a trained model, as the data calls them; refuses others where the model has no names for them."""
    if problem_type == "regression":
        return Labels(problem_type)
    labels = sorted(column.seen)
    numbers = tuple(map(str, range(len(trained))))
    if trained != tuple(f"LABEL_{number}" for number in numbers) or {*labels} <= {*trained}:
        return Labels(problem_type, trained)
    if len(options.named_labels) == len(trained):
        return Labels(problem_type, options.named_labels)
    if {*labels} <= {*numbers} and not options.named_labels:
        return Labels(problem_type, numbers)
    raise UserError(
        f"The model has {len(trained)} labels without names (LABEL_0, ...), column {column.name!r} has {labels[:5]}. "
        "Name the model's labels in the order of its outputs, perhaps not this one: "
        f"{spell('label_names', ','.join(labels))}."
    )


# ---- the numbers ----------------------------------------------------------------------------------------------------


def _numbered(labels: Labels, column: _Column) -> list[Any]:
    """The numbers of a split's labels, as `encode_labels` returns them.

    Raises:
        UserError: a label is unknown, or written for another problem type.
    """
    several, real = labels.problem_type == "multi_label_classification", labels.problem_type == "regression"
    if column.is_list != several or (real and column.kind == "words"):
        raise _contradicts(labels.problem_type, column)
    if real:
        return [None if names is None else _number(names[0], column, row) for row, names in enumerate(column.rows)]
    _refuse_unknown(labels, column)
    _refuse_twice(column)
    numbers = labels.numbers()
    if several:
        return [None if names is None else [float(name in names) for name in numbers] for names in column.rows]
    return [None if names is None else numbers[names[0]] for names in column.rows]


def _number(name: str, column: _Column, row: int) -> float:
    """A number to predict; refuses one that is too large."""
    if abs(float(name)) > GREATEST:
        place = f"{column.table.where(row)} of the {column.split} data"
        raise UserError(
            f"{column.name!r} is {name} in {place}, and a model's numbers (float32) are at most {GREATEST:g}. Divide "
            "them all, or take their logarithms."
        )
    return _NEXT_TO_IGNORED if np.float32(name) == -100 else float(name)


def _refuse_twice(column: _Column) -> None:
    """Refuses a row that names a label twice."""
    for row, names in enumerate(column.rows):
        if names is not None and len({*names}) < len(names):
            place = f"The {column.split} data names a label twice in {column.table.where(row)}: {names}"
            raise UserError(f"{place}. List those that apply, not a 0 or 1 for each label.")


def _contradicts(problem_type: str, column: _Column) -> UserError:
    """The error of labels that are written for another problem type; it says how to write them."""
    wanted = {
        "single_label_classification": "one label for each text",
        "multi_label_classification": (
            f"lists of labels, cells with a {spell('label_delimiter')} between several labels, or columns of 0 and 1 "
            f"({spell('label_column', 'a,b')})"
        ),
        "regression": "one number for each text",
    }[problem_type]
    present = [row for row in column.rows if row is not None]
    odd = next((row for row in present if not _NUMBER.fullmatch(" ".join(row))), present[0])
    cell = f"{odd if column.is_list else odd[0]!r} in column {column.name!r}"
    return UserError(
        f"The {column.split} data has {cell}, and the problem type is {problem_type}: write {wanted}; or name another "
        f"column with {spell('label_column')}."
    )


def _refuse_unknown(labels: Labels, column: _Column) -> None:
    """Raises a UserError that lists all labels which aren't known, with their rows."""
    unknown: dict[str, list[int]] = defaultdict(list)
    known = {*labels.names}
    for row, names in enumerate(column.rows):
        for name in {*(names or ())} - known:
            unknown[name].append(row)
    if not unknown:
        return
    spelt = listed([f"{name!r} ({column.table.places(rows)})" for name, rows in unknown.items()])
    first = ", ".join(map(repr, labels.names[:10])) + ", ..." * (len(labels.names) > 10)
    numbered = "" if column.known else f", or say what 0, 1, ... mean with {spell('label_names')}"
    raise UserError(f"The {column.split} data has unknown labels: {spelt}. Known are {first}. Write these{numbered}.")


def refuse_far_from_zero(name: str, numbers: Sequence[float]) -> None:
    """Raises a UserError where numbers differ by so little of their size that float32 answers can't tell them apart."""
    values = np.asarray(numbers, np.float64)
    mean = float(values.mean())
    deviation = float(np.std(values))
    if values.min() == values.max() or abs(mean) <= FAR_FROM_ZERO * deviation:
        return
    offset = round(mean, -math.floor(math.log10(deviation))) if deviation else mean
    raise UserError(
        f"Column {name!r} has training numbers of {mean:.10g} on average that differ by little (standard deviation "
        f"{deviation:.3g}): a model's numbers (float32) hold 7 digits. Subtract {offset:.15g} from them all, and add "
        "it to the answers."
    )


def standard_units(numbers: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (over n, not n - 1) of numbers, computed in float64.

    Numbers that float32 can't tell apart have a standard deviation of 1, by which one may divide.
    """
    values = np.asarray(numbers, np.float64)
    mean = float(values.mean())
    std = float(values.std())
    smallest = max(abs(mean) * np.finfo(np.float32).eps, np.finfo(np.float32).tiny)
    return mean, std if std > smallest else 1.0
