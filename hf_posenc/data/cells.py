"""Cells of a table: types of csv cells, missing ones, and names of rows."""

import math
import re
from collections.abc import Sequence
from typing import Any

# A csv has no types. 007, +5 and 1e5 may be names, so they stay strings.
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_REAL = re.compile(r"[+-]?(0|[1-9]\d*)\.\d*([eE][+-]?\d+)?|[+-]?\.\d+([eE][+-]?\d+)?|[+-]?[1-9]\d*[eE][+-]\d+")
_NO_NUMBER = ("nan", "inf", "-inf")


def is_csv_data(dataset: Any) -> bool:
    """Whether the cells are strings that may mean numbers."""
    return dataset.info.builder_name == "csv"


def row_number(index: int, is_csv: bool) -> int:
    """The number of a row in its file: from 1; a csv's header is row 1."""
    return index + 2 if is_csv else index + 1


def row_name(index: int, is_csv: bool) -> str:
    """A row in words."""
    return f"row {row_number(index, is_csv)}{' (the header is row 1)' if is_csv else ''}"


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
        found = [None if cell is None else float(cell) for cell in stripped]
        if numbers or all(value is None or math.isnan(value) or value.is_integer() for value in found):
            return found
    return stripped


def is_missing(value: Any) -> bool:
    """Whether a cell holds no label."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )
