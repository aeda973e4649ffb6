"""A column of labels as Python values: names, lists of names, or numbers."""

from dataclasses import dataclass
from typing import Any

from datasets import ClassLabel, List

from ..errors import UserError
from .cells import as_written, is_missing, row_name


@dataclass(frozen=True)
class LabelColumn:
    """The labels of one split as Python values: names, lists of names, or floats; None if missing."""

    values: list[Any]
    kind: str
    is_list: bool
    known: tuple[str, ...] | None = None
    """All labels, if the data set declares them."""
    is_csv: bool = False
    from_file: bool = True
    """Whether the rows are those of the file, from its first on."""

    @property
    def present(self) -> list[Any]:
        """The values that aren't missing."""
        return [value for value in self.values if value is not None]

    def items(self) -> list[Any]:
        """All labels, repeated for each text that has them."""
        return [item for value in self.present for item in (value if self.is_list else (value,))]

    def where(self, index: int, before: str = "") -> str:
        """The name of a row, after `before`; empty if the rows aren't the file's."""
        return f"{before}{row_name(index, self.is_csv)}" if self.from_file else ""


def read_values(
    values: list[Any],
    feature: Any,
    is_csv: bool,
    column: str,
    split: str,
    delimiter: str | None,
    task: str | None,
    *,
    from_file: bool = True,
) -> LabelColumn:
    """Cells of a column of labels as Python values.

    Raises:
        UserError: they are of mixed types.
    """
    if is_csv and delimiter is None:
        values = as_written(values, numbers=task != "classification")
    inner = feature.feature if isinstance(feature, List) else feature
    known = tuple(inner.names) if isinstance(inner, ClassLabel) else None
    if delimiter is not None:
        values = [
            [part.strip() for part in value.split(delimiter) if part.strip()] if isinstance(value, str) else value
            for value in values
        ]
        # An empty cell says that no label applies.
        values = [[] if value is None else value for value in values]
    present = [value for value in values if not is_missing(value)]
    lists = [value for value in present if isinstance(value, list | tuple)]
    if lists and len(lists) != len(present):
        raise UserError(
            f"Mixed label types in the {split} data: column {column!r} has both lists and single labels. Write all as "
            "lists for several labels per text, or none."
        )
    kinds = {_kind(item) for value in present for item in (value if lists else (value,))}
    if known is not None:
        kinds = {"text"} if kinds else set()
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    if len(kinds) > 1 or "other" in kinds:
        raise UserError(
            f"Mixed label types in the {split} data: column {column!r} has {_examples(present, bool(lists))}. Write "
            "all labels in one way: all strings, all whole numbers, or all real numbers."
        )
    kind = next(iter(kinds), "text")

    def name(value: Any) -> Any:
        if known is not None:
            return known[value] if 0 <= value < len(known) else None
        return float(value) if kind == "number" else str(value).strip()

    converted = [
        None if is_missing(value) else [name(item) for item in value] if lists else name(value) for value in values
    ]
    return LabelColumn(converted, kind, bool(lists), known, is_csv, from_file)


def _kind(value: Any) -> str:
    # bool is a subclass of int, so it comes first.
    for kind, types in (("truth", bool), ("integer", int), ("number", float), ("text", str)):
        if isinstance(value, types):
            return kind
    return "other"


def _examples(values: list[Any], lists: bool) -> str:
    shown: dict[str, Any] = {}
    for value in values:
        for item in value if lists else (value,):
            shown.setdefault(_kind(item), item)
    return " and ".join(repr(value) for value in shown.values())
