"""Texts and labels in memory: lists, arrays, and tables of pandas, polars, pyarrow, datasets and whatever speaks Arrow.

A table is read by the names of its columns, and a missing cell is an empty text, as in a file.
"""

from collections.abc import Mapping
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


def table_in_memory(given: Any) -> dict[str, Any] | None:
    """The columns of a table by name, in the library's own form; None: it is no table, or its columns have no names.

    Raises:
        UserError: it is several tables, or one row.
    """
    if isinstance(given, pd.DataFrame):
        names = list(given.columns)
        columns = {name: given.iloc[:, place] for place, name in enumerate(names)}
    elif isinstance(given, Mapping):
        names = list(given)
        columns = dict(given)
        if any(isinstance(part, Dataset | pd.DataFrame) for part in columns.values()):
            raise UserError(f"X is several tables, {', '.join(map(repr, names))}. Give one of them: X[{names[0]!r}].")
        if any(isinstance(cells, str) for cells in columns.values()):
            raise UserError("X is one row. Give a list of rows: [{...}].")
    else:
        if isinstance(given, Dataset):  # in whichever format: all columns
            given = given.with_format("arrow")[:]
        table = _arrow_table(given)
        if table is None:
            return None
        names = table.column_names
        columns = dict(zip(table.column_names, table.columns, strict=True))
    if not all(isinstance(name, str) for name in names):
        return None
    if len(columns) < len(names):
        raise UserError(f"X has two columns {max(names, key=names.count)!r}. Give each column a name of its own.")
    return columns


def named_table_in_memory(given: Any) -> Table | None:
    """A table in memory as our table; None: it is none.

    Raises:
        UserError: see `table_in_memory`; or a column has values of several types.
    """
    columns = table_in_memory(given)
    if columns is None:
        return None
    with readable(IN_MEMORY, "Write the values of a column alike."):
        values = {name: values_in_memory(cells) for name, cells in columns.items()}
        rows = pa.table({name: [None if is_absent(cell) else cell for cell in cells] for name, cells in values.items()})
    return as_table(rows, IN_MEMORY)


def _speaks_arrow(given: Any) -> bool:
    return hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__")


def _arrow_table(given: Any) -> pa.Table | None:
    """Makes a table of what speaks Arrow's interface; None: it doesn't, or is one column."""
    if not _speaks_arrow(given) or isinstance(given, pd.Series):
        return None
    try:
        return pa.table(given)
    except pa.ArrowInvalid:  # of no names
        return None


def values_in_memory(given: Any) -> list[Any]:
    """Values of a list, an array, a column or a series, as Python's.

    Raises:
        UserError: they can't be listed.
    """
    for method in ("to_pylist", "to_list"):  # pyarrow; pandas and polars
        if hasattr(given, method):
            return list(getattr(given, method)())
    try:
        return list(given)
    except TypeError:
        raise UserError(f"X is {given!r:.60}, a {type(given).__name__}. Give a list of texts, or a table.") from None


def labels_in_memory(given: Any) -> Any:
    """Labels in a form that scikit-learn takes: other libraries' tables as data frames, their columns as lists."""
    if isinstance(given, pd.DataFrame | pd.Series) or not (isinstance(given, Column | Dataset) or _speaks_arrow(given)):
        return given
    table = table_in_memory(given)
    if table is None:
        return values_in_memory(given)
    return pd.DataFrame({name: values_in_memory(cells) for name, cells in table.items()})


def texts_in_memory(given: Any, known: Columns | None = None) -> tuple[list[str], list[tuple[str, ...]]]:
    """The columns that hold texts, which a model remembers, and the texts of each row as a model takes them.

    Args:
        given: strings, rows of strings, rows by column, or a table. Columns of texts are those of the model; to train
            on, `text` and `text_pair`, else all; none where columns have no names.
        known: the columns that the model was trained on. None: it is to be trained.

    Raises:
        UserError: there are none, one is no string, or they aren't what the model was trained on.
    """
    if isinstance(given, str):
        raise UserError(f"X is one string, {given[:40]!r}. Give a list of texts: [{given[:10]!r}...].")
    table = table_in_memory(given)
    rows = list[Any]()
    if table is None:
        rows = values_in_memory(given.to_numpy(object) if isinstance(given, pd.DataFrame) else given)
        if known is None and rows and all(isinstance(row, Mapping) for row in rows):
            keys = dict.fromkeys(key for row in rows for key in row)
            table = {key: [row.get(key) for row in rows] for key in keys}
    names: list[str] = []
    if table is not None:
        to_train_on = [name for name in TEXTS if name in table] or list(table)
        names = to_train_on if known is None else list(columns_of_input(table, known))
        columns = [values_in_memory(table[name]) for name in names]
        if len(lengths := sorted({len(cells) for cells in columns})) > 1:
            raise UserError(f"X has columns of {lengths[0]} and of {lengths[-1]} rows. Give all the same number.")
        rows = list(zip(*columns, strict=True))
    if not rows:
        raise UserError("X has no texts: 0 sample(s) (shape=(0,)) while a minimum of 1 is required.")
    takes_numbers = known is not None and table is not None  # a column of a file may hold them, too
    texts = [_cells_of_row(row, known) for row in rows]
    for number, (row, cells) in enumerate(zip(rows, texts, strict=True)):
        is_text = takes_numbers or all(isinstance(cell, str) for cell in cells)
        if len(cells) != len(texts[0]) or not is_text:
            raise UserError(f"Row {number} is {row!r:.60}. Give a string for each text, or for each a pair.")
        refuse_surrogates((f"Row {number}", cell) for cell in cells if isinstance(cell, str))
    return names, [as_input(cells, known) for cells in texts]


def _cells_of_row(row: Any, known: Columns | None) -> tuple[Any, ...]:
    """The texts of a row, an empty one for what is missing."""
    if isinstance(row, Mapping):
        return as_input(row, known)
    if isinstance(row, str):
        return (row,)
    return tuple("" if is_absent(cell) else cell for cell in np.atleast_1d(np.asarray(row, dtype=object)))
