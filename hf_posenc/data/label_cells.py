"""The cells of a label column as Python values: names, lists of names, or numbers."""

import logging
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from .cells import as_written, has_decimal_commas, is_missing, may_be_thousands
from .columns import Columns, require_columns
from .options import DataArguments
from .table import Table

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelColumn:
    """The labels of one split as Python values: names, lists of names, or floats; None if missing."""

    values: list[Any]
    kind: str
    is_list: bool
    known: tuple[str, ...] | None = None
    """All labels, if the data set declares them."""
    table: Table | None = None
    """Where they stand; None: they aren't the rows of a file."""

    @property
    def present(self) -> list[Any]:
        """The values that aren't missing."""
        return [value for value in self.values if value is not None]

    def items(self) -> list[Any]:
        """All labels, repeated for each text that has them."""
        return [item for value in self.present for item in (value if self.is_list else (value,))]

    def where(self, index: int, before: str = "") -> str:
        """Where a row stands, after `before`; empty if the rows aren't a file's."""
        return "" if self.table is None else f"{before}{self.table.where(index)}"


def read_labels(
    table: Table, columns: Columns, split: str, task: str | None = None, decimal: str | None = None, placed: bool = True
) -> LabelColumn:
    """The label column of a split.

    Args:
        table: the split.
        columns: where the labels are.
        split: its name.
        task: classification or regression, if that's known.
        decimal: the decimal sign of a csv's numbers.
        placed: whether the rows are those of a file.

    Raises:
        UserError: labels are of mixed types.
    """
    known = None
    if columns.one_hot:
        values = _of_one_hot(table, columns, split)
    else:
        values = list(table.columns[columns.label])
        known = table.classes.get(columns.label)
        if columns.label_delimiter is not None:
            values = [_parts(value, columns.label_delimiter) for value in values]
        elif table.is_text:
            values = as_written(values, numbers=task != "classification", decimal=decimal)
    present = [value for value in values if not is_missing(value)]
    is_list = any(isinstance(value, list | tuple) for value in present)
    if is_list and not all(isinstance(value, list | tuple) for value in present):
        raise UserError(
            f"Mixed label types in the {split} data: column {columns.label!r} has both lists and single labels. Write "
            "all as lists for several labels per text, or none."
        )
    kinds = {_kind(item) for value in present for item in (value if is_list else (value,))}
    if known is not None:
        kinds = {"text"} if kinds else set()
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    if len(kinds) > 1 or "other" in kinds:
        raise UserError(
            f"Mixed label types in the {split} data: column {columns.label!r} has {_examples(present, is_list)}. Write "
            "all labels in one way: all strings, all whole numbers, or all real numbers."
        )
    kind = next(iter(kinds), "text")

    def name(value: Any) -> Any:
        if known is not None:
            return known[value] if 0 <= value < len(known) else None
        return float(value) if kind == "number" else str(value).strip()

    converted = [
        None if is_missing(value) else [name(item) for item in value] if is_list else name(value) for value in values
    ]
    return LabelColumn(converted, kind, is_list, known, table if placed else None)


def _parts(value: Any, delimiter: str) -> Any:
    """The labels of one cell; an empty cell says that none applies."""
    if value is None:
        return []
    return [part.strip() for part in value.split(delimiter) if part.strip()] if isinstance(value, str) else value


def _of_one_hot(table: Table, columns: Columns, split: str) -> list[Any]:
    """For each row the names of the columns that hold 1."""
    marks = [_marks(table, name, split) for name in columns.one_hot]
    return [[name for name, one in zip(columns.one_hot, row, strict=True) if one] for row in zip(*marks, strict=True)]


def _marks(table: Table, name: str, split: str) -> list[bool]:
    require_columns(table, [name], "--label-column-name", split)
    meant = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
    found = []
    for index, cell in enumerate(table.columns[name]):
        mark = meant.get(str(cell).strip().lower())
        if mark is None:
            raise UserError(
                f"--label-column-name names several columns of 0 and 1: column {name!r} has {cell!r:.40} in "
                f"{table.where(index)}."
            )
        found.append(mark)
    return found


def _kind(value: Any) -> str:
    # bool is a subclass of int, so it comes first.
    for kind, types in (("truth", bool), ("integer", int), ("number", float), ("text", str)):
        if isinstance(value, types):
            return kind
    return "other"


def _examples(values: list[Any], is_list: bool) -> str:
    shown: dict[str, Any] = {}
    for value in values:
        for item in value if is_list else (value,):
            shown.setdefault(_kind(item), item)
    return " and ".join(repr(value) for value in shown.values())


def decimal_sign(tables: Any, columns: Columns, options: DataArguments) -> str | None:
    """The decimal sign of a csv's numbers: by option, or a comma where all labels are numbers with it."""
    if options.decimal is not None or columns.one_hot or columns.label_delimiter is not None:
        return options.decimal
    for table in tables:
        cells = table.columns.get(columns.label, ()) if table.is_text else ()
        if cells and has_decimal_commas(cells):
            example = next(cell for cell in cells if cell and "," in cell)
            if may_be_thousands(cells):
                raise UserError(
                    f"Column {columns.label!r} has {example}, which may be {example.replace(',', '.')} or "
                    f"{example.replace(',', '')}. Say --decimal , for the former; write numbers without marks between "
                    "thousands for the latter; --decimal . keeps such cells as words."
                )
            logger.warning(
                f"Column {columns.label!r} has decimal commas: {example} is read as {example.replace(',', '.')} "
                "(--decimal . keeps it as a word)."
            )
            return ","
    return None
