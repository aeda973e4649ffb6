"""Columns of text and label: named, remembered in a checkpoint, or of the usual names."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from .options import DataArguments
from .table import Table

_TEXTS: tuple[tuple[str, ...], ...] = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text",),
    ("sentence",),
)
_LABELS = (("label",), ("labels",))
_SHOWN = 12


@dataclass(frozen=True)
class Columns:
    """Which columns hold the text, the second text of a pair, and the label."""

    text: tuple[str, ...]
    label: str
    delimiter: str | None = None
    """Joins all text columns to one text."""
    label_delimiter: str | None = None
    """Separates several labels in one cell."""
    one_hot: tuple[str, ...] = ()
    """Columns of 0 and 1, one for each label, instead of one column of labels."""

    @property
    def is_pair(self) -> bool:
        """Whether an example is two texts."""
        return len(self.text) == 2 and self.delimiter is None

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of labels."""
        return self.one_hot or (self.label,)

    def texts(self, batch: Mapping[str, Sequence[Any]]) -> tuple[list[str], ...]:
        """The texts of some rows: `(first,)`, or `(first, second)` of pairs; a missing text is an empty one."""
        columns = [["" if value is None else str(value) for value in batch[name]] for name in self.text]
        if self.delimiter is not None:
            return ([self.delimiter.join(values) for values in zip(*columns, strict=True)],)
        return tuple(columns)

    def text_of(self, cells: Mapping[str, Any]) -> tuple[str, ...]:
        """The same of one row."""
        return tuple(column[0] for column in self.texts({name: [cells.get(name)] for name in self.text}))

    def sentence(self, names: Sequence[str]) -> str:
        """In words, with the columns that aren't used."""
        joined = f" (joined with {self.delimiter!r})" if self.delimiter is not None and len(self.text) > 1 else ""
        text = " and ".join(self.text) + (" (a pair)" if self.is_pair else joined)
        unused = [name for name in names if name not in (*self.text, *self.labels)]
        label = f"; label: {', '.join(self.labels)}" if set(self.labels) <= set(names) else ""
        more = f", ... ({len(unused)} columns)" if len(unused) > _SHOWN else ""
        return f"Text: {text}{label}" + (f"; not used: {', '.join(unused[:_SHOWN])}{more}" if unused else "")


def find_columns(
    table: Table, data: DataArguments, known: Columns | None = None, *, needs_label: bool = True
) -> Columns:
    """The columns that the options name, else a checkpoint's, else those of the usual names.

    Usual names of a text are text and sentence; of a pair text and text_pair, sentence1 and sentence2, premise and
    hypothesis, question1 and question2; of a label label and labels.

    Args:
        table: has the columns.
        data: the options.
        known: those that a checkpoint was trained on; used if the data has them.
        needs_label: whether a label has to be found.

    Raises:
        UserError: a named column isn't there, or none is named and not exactly one has a usual name. The message lists
            the columns and the options for all that is missing.
    """
    label, one_hot = _named_label(table, data.label_column_name, known)
    text, joined = _named_text(table, data, known)
    usual_texts, usual_labels = _usual(table, _TEXTS), _usual(table, _LABELS)
    lacks_text = not text and len(usual_texts) != 1
    lacks_label = label is None and needs_label and len(usual_labels) != 1
    if lacks_text or lacks_label:
        raise _unnamed(table, usual_texts if lacks_text else None, usual_labels if lacks_label else None)
    if not text:
        text = usual_texts[0]
        _require_alike(text, known)
    if label is None:
        label = usual_labels[0][0] if len(usual_labels) == 1 else known.label if known is not None else _LABELS[0][0]
    if label in text or set(one_hot) & set(text):
        raise UserError(f"Column {label!r} can't be both text and label. Name another with --label-column-name.")
    _check_text(table, text)
    return Columns(text, label, joined, data.label_delimiter or (known.label_delimiter if known else None), one_hot)


def _usual(table: Table, names: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The usual names that the table has; a part of a pair that is there doesn't count by itself."""
    there = [columns for columns in names if set(columns) <= set(table.names)]
    return [columns for columns in there if not any(set(columns) < set(others) for others in there)]


def _unnamed(table: Table, texts: list[tuple[str, ...]] | None, labels: list[tuple[str, ...]] | None) -> UserError:
    """The error of columns that must be named; None: these needn't be."""
    wanted, options = [], []
    longest = max(table.names, key=lambda name: sum(len(str(cell)) for cell in table.columns[name][:100]), default="")
    for found, what, name, option in (
        (texts, "text or sentence, nor a pair such as text and text_pair", longest, "--text-column-names"),
        (labels, "label or labels", next((name for name in table.names if name != longest), ""), "--label-column-name"),
    ):
        if found is not None:
            several = " and ".join(", ".join(columns) for columns in found)
            wanted.append(f"{several} could all be meant" if found else f"no column is called {what}")
            options.append(f"{option} {','.join(found[0]) if found else name or 'NAME'}")
    cells = [f"{name} ({_first_cell(table, name)!r:.40})" for name in table.names]
    more = f", ... ({len(cells)} columns)" if len(cells) > _SHOWN else ""
    divided = next((mark for mark in (";", "\t", "|") if len(cells) == 1 and mark in table.names[0]), None)
    separated = "" if divided is None else f" If {divided!r} separates the columns: --delimiter {divided!r}."
    return UserError(
        f"{table.source}: {'; '.join(wanted)}. It has {', '.join(cells[:_SHOWN])}{more}. Say which: such as "
        f"{' '.join(options)}.{separated}{_no_names(table)}"
    )


def _first_cell(table: Table, name: str) -> Any:
    return next((cell for cell in table.columns[name][:100] if cell is not None), None)


def _named_text(table: Table, data: DataArguments, known: Columns | None) -> tuple[tuple[str, ...], str | None]:
    """The text columns by option, or of the checkpoint, and what joins them."""
    joined = data.text_column_delimiter
    if data.text_column_names is None:
        if known is not None and set(known.text) <= set(table.names):
            return known.text, joined or known.delimiter
        return (), joined
    text = _listed(table, data.text_column_names)
    require_columns(table, text, "--text-column-names")
    if len(text) > 2 and joined is None:
        raise UserError(
            f"--text-column-names {','.join(text)} names {len(text)} columns. Give one, two for pairs, or join them "
            "with --text-column-delimiter ' '."
        )
    return text, joined


def _require_alike(text: tuple[str, ...], known: Columns | None) -> None:
    """Refuses to read one text for a model of pairs, pairs for one of texts, or a part of the columns it joins."""
    if known is None:
        return
    shared = set(text) & set(known.text)
    if known.is_pair != (len(text) == 2) or (shared and len(shared) < len(known.text)):
        raise UserError(
            f"The model was trained on the text of {known.sentence(known.text).removeprefix('Text: ')}; the data has "
            f"{' and '.join(text)}. Rename its columns, or say what to read: --text-column-names {','.join(text)}."
        )


def _named_label(table: Table, option: str | None, known: Columns | None) -> tuple[str | None, tuple[str, ...]]:
    """The label column by option or of the checkpoint, and one-hot columns."""
    if option is not None:
        names = _listed(table, option)
        require_columns(table, names, "--label-column-name")
        return (names[0], ()) if len(names) == 1 else (", ".join(names), names)
    if known is not None and known.one_hot and set(known.one_hot) <= set(table.names):
        return known.label, known.one_hot
    return (known.label if known is not None and known.label in table.columns else None), ()


def _check_text(table: Table, names: Sequence[str]) -> None:
    """Refuses columns with lists, objects or bytes, or with numbers among texts."""
    for name in names:
        cells = table.columns.get(name, ())
        kinds = {type(cell) for cell in cells if cell is not None}
        if kinds <= {str} or kinds <= {int, float, bool}:
            continue
        row, cell = next((n, c) for n, c in enumerate(cells) if c is not None and not isinstance(c, str))
        if isinstance(cell, datetime.date):
            continue
        raise UserError(
            f"Column {name!r} holds {cell!r:.60} in {table.where(row)}, which is no text. Write one string there, "
            "joining the parts of a list, or name another column with --text-column-names."
        )


def _listed(table: Table, option: str) -> tuple[str, ...]:
    """The column that an option names, or several joined by commas."""
    return (option,) if option in table.columns else tuple(filter(None, map(str.strip, option.split(","))))


def texts_of(table: Table, columns: Columns, split: str) -> tuple[list[str], ...]:
    """The texts of a split.

    Raises:
        UserError: it has no such column, or one that holds no text.
    """
    require_columns(table, columns.text, "--text-column-names", split)
    _check_text(table, columns.text)
    return columns.texts(table.columns)


def require_columns(table: Any, names: Sequence[str], option: str, split: str = "train") -> None:
    """Raises a UserError if a column isn't there; the message lists those that are."""
    missing = [name for name in names if name not in table.names]
    if missing:
        raise UserError(
            f"The {split} data has no column {missing[0]!r}. It has {', '.join(map(repr, table.names))}: name "
            f"one with {option}.{_no_names(table)}"
        )


def _no_names(table: Any) -> str:
    return " If these are no names, write a first row of names." if table.is_text else ""


_OURS = "hf_posenc"


def remember_columns(config: Any, columns: Columns) -> None:
    """Writes the columns of the training data into a model's configuration, which is saved with the weights."""
    noted = {
        "text_column_names": list(columns.text),
        "text_column_delimiter": columns.delimiter,
        "label_column_name": columns.label,
        "label_delimiter": columns.label_delimiter,
        "one_hot_columns": list(columns.one_hot),
    }
    # Every transformers configuration has this field; transformers ignores our key.
    others = getattr(config, "task_specific_params", None)
    config.task_specific_params = {**(others if isinstance(others, dict) else {}), _OURS: noted}


def remembered_columns(config: Any) -> Columns | None:
    """The columns that a checkpoint was trained on; None if its configuration has none in our form."""
    noted = getattr(config, "task_specific_params", None)
    noted = noted.get(_OURS) if isinstance(noted, dict) else None
    if not isinstance(noted, dict):
        return None
    text, label = noted.get("text_column_names"), noted.get("label_column_name")
    marks = noted.get("text_column_delimiter"), noted.get("label_delimiter")
    if not (isinstance(text, list) and text and all(isinstance(name, str) for name in (*text, label))):
        return None
    if not all(mark is None or isinstance(mark, str) for mark in marks):
        return None
    return Columns(tuple(text), str(label), *marks, tuple(noted.get("one_hot_columns") or ()))
