"""Columns of text and label: named, remembered in a checkpoint, or found by their names and what they hold."""

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from .cells import as_written, is_missing
from .options import DataArguments
from .table import Table

_PAIRS: tuple[tuple[str, ...], ...] = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)
_SINGLES = ("text", "sentence", "content", "review", "question")
_LABELS = ("label", "labels")
_LOOKED_AT = 1000
"""Rows by which a column is judged."""
_NUMBERS_ROWS = re.compile(r"Unnamed: \d+|__index_level_\d+__|(.*[^a-z])?(id|idx|index)", re.IGNORECASE)
"""Names of columns whose whole numbers number the rows."""
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]{2}")
"""Two letters of a script without blanks between words (Thai, Lao, Burmese, Khmer, Japanese, Chinese): about a word."""
_SHOWN = 12
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([T ]\d\d?:\d\d.*)?|\d\d?[./-]\d\d?[./-]\d{2,4}([ ,]+\d\d?:\d\d.*)?")


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
    """The columns that the options name, else a checkpoint's, else those with usual names, else the only fitting ones.

    Usual names are text, sentence, content, review, question; for pairs text and text_pair, sentence1 and sentence2,
    premise and hypothesis, question1 and question2; for labels label and labels; all in any case. Without one, the
    text is the only column of words (ids, dates and categories are none), and the label is the only one that is left.

    Args:
        table: has the columns.
        data: the options.
        known: those that a checkpoint was trained on; used if the data has them.
        needs_label: whether a label has to be found.

    Raises:
        UserError: a named column isn't there, or several could be meant.
    """
    kinds = {name: kind_of_column(table, name) for name in table.names}
    label, one_hot = _named_label(table, data.label_column_name, known)
    text, joined = _named_text(table, data, known)
    if not text:
        text = _find_text(table, kinds, label)
        _require_alike(text, known)
    if label is None and needs_label:
        label = _find_label(table, kinds, text)
        _require_names(table, label)
    label = label or (known.label if known is not None else _LABELS[0])
    if label in text or set(one_hot) & set(text):
        raise UserError(f"Column {label!r} can't be both text and label. Name another with --label-column-name.")
    _check_text(table, text)
    return Columns(text, label, joined, data.label_delimiter or (known.label_delimiter if known else None), one_hot)


def _named_text(table: Table, data: DataArguments, known: Columns | None) -> tuple[tuple[str, ...], str | None]:
    """The text columns by option, or of the checkpoint, and what joins them."""
    joined = data.text_column_delimiter
    if data.text_column_names is None:
        if known is not None and (text := _all_of(table, known.text)):
            return text, joined or known.delimiter
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
    """The label column by option, of the checkpoint, or with a usual name; and one-hot columns."""
    if option is not None:
        column = _match(table, option)
        if column is not None or "," not in option:
            return column or option, ()
        names = _listed(table, option)
        require_columns(table, names, "--label-column-name")
        return ", ".join(names), names
    if known is not None and (one_hot := _all_of(table, known.one_hot)):
        return known.label, one_hot
    usual = (*((known.label,) if known is not None else ()), *_LABELS)
    return next(filter(None, (_match(table, name, "--label-column-name") for name in usual)), None), ()


def _find_text(table: Table, kinds: Mapping[str, str], label: str | None) -> tuple[str, ...]:
    for names in (*_PAIRS, *((single,) for single in _SINGLES)):
        if text := _all_of(table, names, "--text-column-names"):
            return text
    others = {name: kind for name, kind in kinds.items() if name != label}
    texts = [name for name, kind in others.items() if kind == "text"]
    if len(texts) == 1:
        return (texts[0],)
    if texts:
        raise UserError(
            f"Several columns hold text: {', '.join(texts)}. Name the one to read, --text-column-names {texts[0]}; or "
            f"join them: --text-column-names {','.join(texts)} --text-column-delimiter ' '; as a pair: "
            f"--text-column-names {','.join(texts[:2])}."
        )
    left = [name for name, kind in others.items() if kind != "row number"]
    if len(left) == 1 and others[left[0]] in (("category",) if label is not None else ("category", "id")):
        return (left[0],)
    listed = ", ".join(f"{name} ({kind})" for name, kind in others.items())
    raise UserError(
        f"No column is sure to hold text: the data has {listed or 'none'}. Name it with --text-column-names."
        f"{_no_names(table)}"
    )


def _find_label(table: Table, kinds: Mapping[str, str], text: Sequence[str]) -> str:
    """The only column besides the text that could be a label."""
    others = [name for name, kind in kinds.items() if name not in text and kind != "row number"]
    names = [name for name in others if kinds[name] in ("category", "number", "list", "truth")] or others
    if len(names) == 1:
        return names[0]
    if not names:
        raise UserError(
            f"The data has no column with labels, only {', '.join(map(repr, text))}. Add one.{_no_names(table)}"
        )
    marks = [name for name in names if {str(cell) for cell in table.columns[name][:_LOOKED_AT]} <= {"0", "1"}]
    several = f" Columns of 0 and 1: --label-column-name {','.join(marks)}." if len(marks) > 1 else ""
    raise UserError(
        f"No column is called label, and {' and '.join(map(repr, names))} could be one. Name it: --label-column-name "
        f"{names[0]}.{several}{_no_names(table)}"
    )


def _require_names(table: Table, label: str) -> None:
    """Refuses a csv whose first row is one of data: its label is one of those below."""
    cells = {str(cell).strip() for cell in table.columns[label][:_LOOKED_AT]}
    number = table.is_text and isinstance(as_written([label])[0], int | float)
    if table.is_text and (number or label.strip() in cells):
        raise UserError(
            f"The first row of {table.source!r} ({', '.join(table.names)}) is one of data: {label!r} is a label. Write "
            "a first row of names above it: text,label."
        )


def kind_of_column(table: Table, name: str) -> str:
    """What the first rows hold: text, category, id, date, number, row number, truth, list, nothing, or other."""
    cells = [cell for cell in table.columns[name][:_LOOKED_AT] if not is_missing(cell)]
    if table.is_text:
        cells = as_written(cells)
    if name in table.classes:
        return "category"
    if not cells:
        return "nothing"
    if _NUMBERS_ROWS.fullmatch(name) and len(set(cells)) == len(cells) and {type(cell) for cell in cells} == {int}:
        return "row number"
    for kind, types in (("truth", bool), ("number", int | float), ("list", list | tuple)):
        if all(isinstance(cell, types) for cell in cells):
            return kind
    if all(isinstance(cell, datetime.date) for cell in cells):
        return "date"
    if not all(isinstance(cell, str) for cell in cells):
        return "other"
    return _kind_of_words(cells)


def _kind_of_words(cells: Sequence[str]) -> str:
    if all(_DATE.fullmatch(cell.strip()) for cell in cells):
        return "date"
    distinct, count = len(set(cells)), len(cells)
    lengths = [len(cell.split()) + len(_UNSPACED.findall(cell)) for cell in cells]
    if max(lengths) == 1:
        return "id" if distinct == count and count > 1 else "category"
    # Categories may be of a few words; then they come back.
    few = 2 * distinct <= count and sum(lengths) <= 4 * count
    return "category" if few or sum(length > 1 for length in lengths) < count / 5 else "text"


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


def _match(table: Table, wanted: str, option: str | None = None) -> str | None:
    """The column of that name, else the only one that differs in case or outer blanks.

    Raises:
        UserError: with `option`, if several differ so.
    """
    if wanted in table.columns:
        return wanted
    alike = [name for name in table.names if name.strip().lower() == wanted.strip().lower()]
    if len(alike) > 1 and option is not None:
        raise UserError(
            f"The columns {' and '.join(map(repr, alike))} have one name in two spellings. Name one: {option}."
        )
    return alike[0] if len(alike) == 1 else None


def _all_of(table: Table, names: Sequence[str], option: str | None = None) -> tuple[str, ...]:
    """The columns of these names; none if one isn't there."""
    columns = tuple(filter(None, (_match(table, name, option) for name in names)))
    return columns if len(columns) == len(names) else ()


def _listed(table: Table, option: str) -> tuple[str, ...]:
    """The columns that an option names, joined by commas."""
    return tuple(_match(table, name) or name.strip() for name in option.split(",") if name.strip())


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
