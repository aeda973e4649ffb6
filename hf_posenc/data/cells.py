"""Cells of a table: the numbers that the strings of a csv mean, and missing ones."""

import math
import re
from collections.abc import Sequence
from typing import Any

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
