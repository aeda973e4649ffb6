"""Cells of a table: the numbers that the strings of a csv mean, and missing ones."""

import math
import re
from collections.abc import Sequence
from typing import Any

# A csv has no types. 007, +5 and 1e5 may be names, so they stay strings.
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}")
_REAL = re.compile(r"[+-]?(0|[1-9]\d*)\.\d*([eE][+-]?\d+)?|[+-]?\.\d+([eE][+-]?\d+)?|[+-]?[1-9]\d*[eE][+-]\d+")
_COMMA = re.compile(r"[+-]?\d+,\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_NO_NUMBER = ("nan", "inf", "-inf")


def as_written(cells: Sequence[Any], numbers: bool = True, decimal: str | None = None) -> list[Any]:
    """A csv column as integers if all cells are, as floats if all are numbers, else as strings.

    With `numbers=False` floats stay strings unless all are whole: as names, 1.10 and 1.1 differ. With the decimal sign
    "," the cell 5,4 means 5.4.
    """
    stripped = [cell.strip() or None if isinstance(cell, str) else cell for cell in cells]
    present = {cell for cell in stripped if cell is not None}
    if not present or not all(isinstance(cell, str) for cell in present):
        return stripped
    if decimal == "," and has_decimal_commas(present):
        return [None if cell is None else float(cell.replace(",", ".")) for cell in stripped]
    if all(_WHOLE.fullmatch(cell) for cell in present):
        return [None if cell is None else int(cell) for cell in stripped]
    real = any(_REAL.fullmatch(cell) for cell in present)
    if real and all(_WHOLE.fullmatch(cell) or _REAL.fullmatch(cell) or cell.lower() in _NO_NUMBER for cell in present):
        values = [None if cell is None else float(cell) for cell in stripped]
        if numbers or all(value is None or math.isnan(value) or value.is_integer() for value in values):
            return values
    return stripped


def has_decimal_commas(cells: Sequence[Any] | set[Any]) -> bool:
    """Whether all cells are numbers, and some are written as 5,4."""
    present = [cell.strip() for cell in cells if isinstance(cell, str) and cell.strip()]
    commas = [bool(_COMMA.fullmatch(cell)) for cell in present]
    return any(commas) and all(comma or _WHOLE.fullmatch(cell) for comma, cell in zip(commas, present, strict=True))


def may_be_thousands(cells: Sequence[Any]) -> bool:
    """Whether each comma of cells with decimal commas may as well separate thousands: 8,320."""
    return all(_THOUSANDS.fullmatch(cell.strip()) for cell in cells if cell and "," in cell)


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )
