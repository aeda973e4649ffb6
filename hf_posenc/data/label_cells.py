"""The cells of a label column as Python values: names, lists of names, or numbers."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import UserError
from .cells import as_written, has_decimal_commas, is_missing, may_be_thousands
from .columns import Columns, require_columns
from .options import DataArguments
from .table import Table

logger = logging.getLogger(__name__)


_MARKS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""What columns of 0 and 1 may hold."""


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
    table: Table
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
        return self.table.where(index)


def read_labels(
    table: Table, columns: Columns, split: str, task: str | None = None, decimal: str | None = None
) -> LabelColumn:
    """The label column of a split.

    Args:
        table: the split.
        columns: where the labels are.
        split: its name.
        task: classification or regression, if that's known.
        decimal: the decimal sign of a csv's numbers.

    Raises:
        UserError: labels are of mixed types, or not in the columns.
    """
    require_columns(table, columns.labels, "--label-column-name", split)
    name, known = columns.label, None
    if columns.one_hot:
        values: list[Any] = _of_one_hot(table, columns)
    else:
        values, known = list(table.columns[name]), table.classes.get(name)
        if columns.label_delimiter is not None:
            values = [_parts_of(value, columns.label_delimiter) for value in values]
        elif table.is_text:
            values = as_written(values, numbers=task != "classification", decimal=decimal)
    present = [value for value in values if not is_missing(value)]
    is_list = any(isinstance(value, list | tuple) for value in present)
    if is_list and not all(isinstance(value, list | tuple) for value in present):
        raise UserError(
            f"Mixed label types in the {split} data: column {name!r} has both lists and single labels. Write all as "
            "lists for several labels per text, or none."
        )
    items = (item for value in present for item in value) if is_list else present
    kind = "text" if known is not None else _kind_of_labels(items, f"in the {split} data: column {name!r}")

    def label(cell: Any) -> Any:
        if known is not None:
            return known[cell] if 0 <= cell < len(known) else None
        return float(cell) if kind == "number" else str(cell).strip()

    labels = [
        None if is_missing(value) else [label(item) for item in value] if is_list else label(value) for value in values
    ]
    return LabelColumn(name, split, labels, kind, is_list, known, table)


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


def _of_one_hot(table: Table, columns: Columns) -> list[list[str]]:
    """For each row the names of the columns that hold 1."""
    labels: list[list[str]] = [[] for _ in range(len(table))]
    for name in columns.one_hot:
        for index, cell in enumerate(table.columns[name]):
            mark = _MARKS.get(str(cell).strip().lower())
            if mark is None:
                raise UserError(
                    f"--label-column-name names several columns of 0 and 1: column {name!r} has {cell!r:.40} in "
                    f"{table.where(index)}."
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


def decimal_sign(tables: Iterable[Table], columns: Columns, options: DataArguments) -> str | None:
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
