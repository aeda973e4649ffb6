"""Texts and labels in memory: lists, arrays, and tables of pandas, polars, pyarrow, datasets and whatever speaks Arrow.

A table is read by the names of its columns, and a missing cell is an empty text, as in a file.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import Column, Dataset

from ..errors import UserError, readable
from .columns import Columns, as_input, columns_of_input, is_absent
from .preparing import TEXTS
from .reading import refuse_surrogates
from .tables import Table, as_table

IN_MEMORY = "texts in memory"
"""What messages call them."""


def _frame_in_memory(given: Any) -> pd.DataFrame | None:
    """A table as a data frame; None: it is no table, or its columns have no names.

    Raises:
        UserError: it is several tables, or one row; or its columns differ in length, or have the same name.
    """
    if isinstance(given, Mapping):
        names = ", ".join(map(repr, given))
        if any(isinstance(part, Dataset | pd.DataFrame) for part in given.values()):
            raise UserError(f"X is several tables, {names}. Give one of them: X[{next(iter(given))!r}].")
        if any(isinstance(cells, str) for cells in given.values()):
            raise UserError("X is one row. Give a list of rows: [{...}].")
        columns = {name: values_in_memory(cells) for name, cells in given.items()}
        if len(lengths := {len(cells): name for name, cells in columns.items()}) > 1:
            counts = " and ".join(f"{name!r} {length}" for length, name in list(lengths.items())[:2])
            raise UserError(f"X has columns of different lengths: {counts}. Give a cell for each row.")
        given = pd.DataFrame(columns, dtype=object)
    elif not isinstance(given, pd.DataFrame):
        given = _from_arrow(given)
    if given is None or not all(isinstance(name, str) for name in given.columns):
        return None
    _refuse_twice("X", given)
    return given


def _refuse_twice(name: str, frame: pd.DataFrame) -> None:
    """Refuses a table of which two columns have the same name."""
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise UserError(f"{name} has two columns {twice!r}. Give each column a name of its own.")


def table_in_memory(given: Any) -> Table | None:
    """A table in memory as our table; None: it is none.

    Raises:
        UserError: see `_frame_in_memory`; or a column has values of several types.
    """
    frame = _frame_in_memory(given)
    if frame is None:
        return None
    with readable(IN_MEMORY, "Write the values of a column alike."):
        return as_table(pa.Table.from_pandas(frame, preserve_index=False), IN_MEMORY)


def _speaks_arrow(given: Any) -> bool:
    return hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")


def _from_arrow(given: Any) -> pd.DataFrame | None:
    """A data frame of what speaks Arrow's interface; None: it doesn't, or is one column."""
    if isinstance(given, Dataset):  # in whichever format: all columns
        given = given.with_format("arrow")[:]
    if not _speaks_arrow(given) or isinstance(given, pd.Series):
        return None
    try:
        table = pa.table(given)
    except pa.ArrowInvalid:  # of no names
        return None
    with readable(IN_MEMORY, "Leave out columns that pandas can't hold."):
        return table.to_pandas(integer_object_nulls=True, ignore_metadata=True)  # which makes an index of a column


def values_in_memory(given: Any) -> list[Any]:
    """Values of a list, an array, a column or a series, as Python's.

    Raises:
        UserError: they can't be listed.
    """
    for method in ("to_pylist", "to_list"):  # pyarrow; pandas and polars
        if hasattr(given, method):
            return list(getattr(given, method)())
    if isinstance(given, np.ndarray) and given.ndim:
        return list(given.tolist())  # Python's numbers
    try:
        return list(given)
    except TypeError:
        raise UserError(f"X is {given!r:.60}, a {type(given).__name__}. Give a list of texts, or a table.") from None


def labels_in_memory(given: Any) -> Any:
    """Labels in a form that scikit-learn takes: other libraries' tables as data frames, their columns as lists.

    Decimals and fractions, as databases give them, become Python's numbers.

    Raises:
        UserError: two columns have the same name.
    """
    if isinstance(given, pd.DataFrame):
        _refuse_twice("y", given)
        objects = given.select_dtypes("object")
        given = given.assign(**{name: objects[name].map(_as_number) for name in objects})
    elif isinstance(given, list | tuple | pd.Series | np.ndarray) and _has_decimals(given):
        return [_as_number(label) for label in given]
    if isinstance(given, pd.DataFrame | pd.Series) or not (isinstance(given, Column | Dataset) or _speaks_arrow(given)):
        return given
    frame = _frame_in_memory(given)
    if frame is None:
        return labels_in_memory(values_in_memory(given))
    objects = frame.select_dtypes("object")  # numbers with missing ones: scikit-learn takes pandas' own types for those
    return frame.assign(**{name: objects[name].convert_dtypes(convert_string=False) for name in objects})


def _has_decimals(labels: Any) -> bool:
    return any(isinstance(label, Decimal | Fraction) for label in labels)


def _as_number(label: Any) -> Any:
    """Of a decimal or a fraction a whole number, as it is, or a real one; else what was given."""
    if not isinstance(label, Decimal | Fraction):
        return label
    is_whole = isinstance(label, Fraction) or label.is_finite()
    return int(label) if is_whole and label == int(label) else float(label)


def texts_in_memory(
    given: Any, known: Columns | None = None, *, trains: bool = False
) -> tuple[list[str], list[tuple[str, ...]]]:
    """The columns that hold texts, which a model remembers, and the texts of each row as a model takes them.

    Args:
        given: strings, rows of strings, rows by column, or a table. Columns of texts are those of the model; to train
            on, `text` and `text_pair`, else all; none where columns have no names. Beside `text` alone there may be no
            other strings to train on.
        known: the columns that the model was trained on. None: it is to be trained, or they aren't known.
        trains: a model is trained on them.

    Raises:
        UserError: there are none, one is no string, or they aren't what the model was trained on.
    """
    if isinstance(given, str):
        raise UserError(f"X is one string, {given[:40]!r}. Give a list of texts: [{given[:10]!r}...].")
    frame = _frame_in_memory(given)
    if frame is None:
        rows = values_in_memory(given.to_numpy(object) if isinstance(given, pd.DataFrame) else given)
        if rows and all(isinstance(row, Mapping) for row in rows):
            frame = pd.DataFrame(rows, dtype=object)
            _check_keys(rows, _names_of_texts(list(frame), known))
    names = [] if frame is None else _names_of_texts(list(frame), known)
    if frame is not None:
        if trains and names == ["text"]:
            _refuse_other_texts(frame)
        rows = list(zip(*(frame[name].tolist() for name in names), strict=True))
    if not rows:
        raise UserError("X has no texts: 0 sample(s) (shape=(0,)) while a minimum of 1 is required.")
    takes_numbers = known is not None and frame is not None  # a column of a file may hold them, too
    return names, [as_input(cells, known) for cells in _checked_texts(rows, takes_numbers)]


def _check_keys(rows: Sequence[Any], names: Sequence[str]) -> None:
    """Refuses a row that lacks one of the columns of texts."""
    for number, row in enumerate(rows):
        if absent := [name for name in names if name not in row]:
            raise UserError(f"Row {number} has no {absent[0]!r}, but {', '.join(map(repr, row))}. Give all of them.")


def _names_of_texts(columns: list[str], known: Columns | None) -> list[str]:
    """Those of the columns that hold texts."""
    if known is not None:
        return list(columns_of_input(columns, known))
    names = [name for name in TEXTS if name in columns] or columns
    if len(names) > 2:
        raise UserError(
            f"X has {len(names)} columns: {', '.join(names[:9])}. Give one of texts, or two as a pair: X[['a', 'b']]."
        )
    return names


def _refuse_other_texts(frame: pd.DataFrame) -> None:
    """Refuses a column of strings beside `text`, which would be left out without a word."""
    for name in frame.columns.drop("text"):
        if any(isinstance(cell, str) for cell in frame[name]):
            pair = f"where {name!r} is the second text of a pair, call it 'text_pair'"
            raise UserError(f"X has {name!r} beside 'text'. Give the texts alone: X['text']; {pair}.")


def _checked_texts(rows: Sequence[Any], takes_numbers: bool) -> list[tuple[Any, ...]]:
    """The texts of each row: as many in each, and strings unless numbers are taken."""
    texts = [_cells_of_row(row) for row in rows]
    for number, (row, cells) in enumerate(zip(rows, texts, strict=True)):
        is_text = takes_numbers or all(isinstance(cell, str) for cell in cells)
        if len(cells) != len(texts[0]) or not is_text:
            raise UserError(f"Row {number} is {row!r:.60}. Give a string for each text, or for each a pair.")
        refuse_surrogates((f"Row {number}", cell) for cell in cells if isinstance(cell, str))
    return texts


def _cells_of_row(row: Any) -> tuple[Any, ...]:
    """The texts of a row, an empty one for what is missing."""
    cells = (row,) if isinstance(row, str) else np.atleast_1d(np.asarray(row, dtype=object))
    return tuple("" if is_absent(cell) else cell for cell in cells)
