"""Columns of text and label: named, remembered in a checkpoint, or of the usual names."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from ..errors import UserError, spell
from ..options import Options, words
from .reading import Dialect
from .tables import Table

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
    labels: tuple[str, ...] = ("label",)
    """One column; or several of 0 and 1, one for each label."""
    separator: str | None = None
    """Joins all text columns to one text. None: two columns are a pair."""
    label_delimiter: str | None = None
    """Separates several labels in one cell."""

    @property
    def is_pair(self) -> bool:
        """True where an example is two texts."""
        return len(self.text) == 2 and self.separator is None

    @property
    def label(self) -> str:
        """The columns of labels, in words."""
        return ", ".join(self.labels)

    @property
    def one_hot(self) -> tuple[str, ...]:
        """The columns of 0 and 1."""
        return self.labels if len(self.labels) > 1 else ()

    def texts(self, table: Table) -> tuple[list[str], ...]:
        """The texts of all rows: `(first,)`, or `(first, second)` of pairs; a missing text is an empty one.

        Cells are joined unless all of a row are missing.

        Raises:
            UserError: a column isn't there, or holds lists, objects or bytes.
        """
        require_columns(table, self.text, "text_column")
        columns = []
        for name in self.text:
            cells = table.class_names(name)
            if odd := [row for row, cell in enumerate(cells) if not _is_text(cell)]:
                what = f"{cells[odd[0]]!r:.60} in {table.where(odd[0])}, which is no text"
                another = spell("text_column")
                raise UserError(f"Column {name!r} holds {what}. Write a string, or name another {another}.")
            columns.append(list(map(written, cells)))
        if self.separator is not None:
            return ([self.joined(cells) for cells in zip(*columns, strict=True)],)
        return tuple(columns)

    def joined(self, cells: Sequence[str]) -> str:
        """The cells of a row as one text; an empty one where all are blank."""
        return (self.separator or "").join(cells) if any(map(str.strip, cells)) else ""

    def sentence(self, names: Sequence[str]) -> str:
        """In words, with the columns that aren't used."""
        joined = f" (joined with {self.separator!r})" if self.separator is not None and len(self.text) > 1 else ""
        text = " and ".join(self.text) + (" (a pair)" if self.is_pair else joined)
        unused = [name for name in names if name not in (*self.text, *self.labels)]
        label = f"; label: {self.label}" if set(self.labels) <= set(names) - set(self.text) else ""
        return f"Text: {text}{label}" + (f"; not used: {_listed(unused)}" if unused else "")


def _is_text(cell: Any) -> bool:
    """True for a cell that is a text, a number, which is written as one, or missing."""
    return isinstance(cell, str | Real | None)


def spelt(names: Sequence[str]) -> str:
    """Columns as an option names them: with commas between them, or where a name could be misread as a JSON list."""
    is_plain = all(name == name.strip() and not {*',["'} & {*name} for name in names)
    return ",".join(names) if is_plain else json.dumps(list(names), ensure_ascii=False)


def _listed(names: Sequence[str]) -> str:
    """The first of the names, and how many there are."""
    return ", ".join(names[:_SHOWN]) + (f", ... ({len(names)} columns)" if len(names) > _SHOWN else "")


def is_absent(cell: Any) -> bool:
    """True for a cell that holds nothing: None, NaN, or what pandas has for them."""
    of_pandas = type(cell).__name__ in ("NAType", "NaTType")  # by name: a bare image has no pandas
    return cell is None or of_pandas or (_is_real(cell) and math.isnan(cell))


def _is_real(cell: Any) -> bool:
    """True for a real number of Python or NumPy, which may be none, and may have a fraction."""
    return isinstance(cell, float | np.floating)


def is_missing(cell: Any) -> bool:
    """True for a cell that holds nothing, or blanks."""
    return is_absent(cell) or (isinstance(cell, str) and not cell.strip())


def written(cell: Any) -> str:
    """A cell as text; an empty one if it is missing. Beside gaps whole numbers of a table are real ones."""
    if _is_real(cell) and float(cell).is_integer() and abs(cell) < 2**53:
        return str(int(cell))
    return "" if is_absent(cell) else str(cell)


def find_columns(table: Table, options: Options, known: Columns | None = None, *, needs_label: bool = True) -> Columns:
    """The columns that the options name, else a checkpoint's, else those of the usual names.

    Usual names of a text are text and sentence; of a pair text and text_pair, sentence1 and sentence2, premise and
    hypothesis, question1 and question2; of a label label and labels.

    Args:
        table: has the columns.
        options: the options.
        known: those that a checkpoint was trained on; used if the data has them.
        needs_label: whether a label has to be found.

    Raises:
        UserError: a named column isn't there, or none is named and not exactly one has a usual name. The message lists
            the columns and the options for all that is missing. Or texts aren't put together as the checkpoint's.
    """
    known = known or Columns((), ())
    texts = _candidates(table, options.text_column, "text_column", known.text, _TEXTS)
    labels = _candidates(table, options.label_column, "label_column", known.labels, _LABELS)
    if len(texts) == 1 and len(labels) > 1:  # a text may be called label
        labels = [columns for columns in labels if not set(columns) & set(texts[0])]
    if len(texts) != 1 or (needs_label and len(labels) != 1):
        raise _unnamed(table, texts, labels if needs_label else _LABELS[:1])
    label = labels[0] if len(labels) == 1 else known.labels or _LABELS[0]
    columns = _as_remembered(Columns(texts[0], label, options.join, options.label_delimiter), known)
    _check_join(columns, options)
    if needs_label and set(label) & set(columns.text):
        another = spell("label_column")
        raise UserError(f"Column {label[0]!r} can't be both text and label. Name another with {another}.")
    if known.text:
        _check_as_trained(columns, known, is_named=options.text_column is not None)
    return columns


def _as_remembered(columns: Columns, known: Columns) -> Columns:
    """The columns with a checkpoint's separator of several texts and delimiter of labels, where they have none."""
    if columns.separator is None and len(columns.text) > 1:
        columns = replace(columns, separator=known.separator)
    if columns.label_delimiter is None:
        columns = replace(columns, label_delimiter=known.label_delimiter)
    return columns


def _check_join(columns: Columns, options: Options) -> None:
    """Refuses to join one column, and more than two that aren't joined."""
    text = columns.text
    if options.join is not None and len(text) == 1:
        wanted = f"joins several columns of text, and there is one, {text[0]!r}. Leave it out."
        raise UserError(wanted, parameter="join", value=options.join)
    if len(text) > 2 and columns.separator is None:
        wanted = f"names {len(text)} columns. Give one, two for pairs, or join them: {spell('join', ' ')}."
        raise UserError(wanted, parameter="text_column")


def _check_as_trained(columns: Columns, known: Columns, *, is_named: bool) -> None:
    """Refuses texts that aren't put together as those that a checkpoint was trained on."""
    text = columns.text
    trained = " and ".join(known.text)
    there = " and ".join(text)
    if known.is_pair != columns.is_pair:
        kind, way_out = ("pairs", "two columns") if known.is_pair else ("single texts", "one column")
        way_out = f"{way_out}: {spell('text_column', 'a,b' if known.is_pair else 'a')}"
        raise UserError(f"The model was trained on {kind} ({trained}), and the data has {there}. Name {way_out}.")
    if is_named or text == known.text:  # one that is named may be joined already
        return
    is_part = 0 < len(set(text) & set(known.text)) < len(known.text)
    if known.separator is not None or is_part:
        raise UserError(
            f"The model was trained on the text of {trained}; the data has {there}. Rename its columns, or say what to "
            f"read: {spell('text_column', spelt(text))}."
        )


def _candidates(
    table: Table,
    option: str | None,
    parameter: str,
    remembered: tuple[str, ...],
    usual: Sequence[tuple[str, ...]],
) -> Sequence[tuple[str, ...]]:
    """The columns that an option names, else a checkpoint's, else all choices of usual names.

    A part of a pair doesn't count by itself.
    """
    names = table.names
    if option is not None:
        chosen = (option,) if option in names else tuple(words(option))
        if not chosen or len({*chosen}) < len(chosen):
            form = "must name each column once, with commas between several: a,b; or as a JSON list: '[\"a, b\"]'."
            raise UserError(form, parameter=parameter, value=option)
        require_columns(table, chosen, parameter)
        return [chosen]
    if remembered and set(remembered) <= set(names):
        return [remembered]
    there = [columns for columns in usual if set(columns) <= set(names)]
    return [columns for columns in there if not any(set(columns) < set(others) for others in there)]


def _unnamed(table: Table, texts: Sequence[tuple[str, ...]], labels: Sequence[tuple[str, ...]]) -> UserError:
    """The error of columns that must be named: exactly one choice isn't missing."""
    names = table.names
    head = table.rows.slice(0, 100).to_pydict()
    longest = max(names, key=lambda name: sum(len(str(cell)) for cell in head[name]))
    fewest = min((name for name in names if name != longest), key=lambda name: len({*map(str, head[name])}), default="")
    wanted, options = [], []
    for candidates, what, guess, parameter in (
        (texts, "text or sentence, nor a pair such as text and text_pair", longest, "text_column"),
        (labels, "label or labels", fewest, "label_column"),
    ):
        if len(candidates) != 1:
            several = " and ".join(", ".join(columns) for columns in candidates)
            wanted.append(f"{several} could all be meant" if candidates else f"no column is called {what}")
            options.append(spell(parameter, spelt(candidates[0] if candidates else [guess])))
    cells = [f"{name} ({next((cell for cell in head[name] if cell is not None), None)!r:.40})" for name in names]
    say = f" Say which: such as {' and '.join(options)}." if fewest or len(labels) == 1 else ""  # none can be both
    return UserError(
        f"{table.name}: {'; '.join(wanted)}. It has {_listed(cells)}.{say} If a .csv has other columns, "
        f"write a first row of names, or say what separates them: {spell('delimiter', ';')} (or ',', '|', tab)."
    )


def require_columns(table: Table, names: Sequence[str], parameter: str, split: str = "") -> None:
    """Raises a UserError if a column, which this parameter may name, isn't there; it lists those that are."""
    if missing := [name for name in names if name not in table.names]:
        data = f"The {split} data" if split else table.name
        there = ", ".join(map(repr, table.names))
        raise UserError(f"{data} has no column {missing[0]!r}. It has {there}: name one with {spell(parameter)}.")


# ---- what a checkpoint remembers ------------------------------------------------------------------------------------

OURS = "hf_posenc"


def notes_of(config: Any) -> dict[str, Any]:
    """Notes that a checkpoint's configuration holds in our name; none that are of a training with other labels."""
    # Every transformers configuration has this field; transformers ignores our key.
    others = getattr(config, "task_specific_params", None)
    noted = others.get(OURS) if isinstance(others, dict) else None
    if not isinstance(noted, dict) or noted.get("labels", labels_of_config(config)) != labels_of_config(config):
        return {}
    return noted


def labels_of_config(config: Any) -> list[str]:
    """The names of the labels by their numbers, in whatever order a file has them."""
    return [name for _, name in sorted((config.id2label or {}).items())]


def note(config: Any, **values: Any) -> None:
    """Writes values in our name into a model's configuration, which is saved with the weights."""
    others = getattr(config, "task_specific_params", None) or {}
    config.task_specific_params = {**others, OURS: {**notes_of(config), **values}}


def remember_columns(config: Any, columns: Columns, dialect: Dialect | None = None) -> None:
    """Writes into a model's configuration how its data was read; what an earlier training noted goes."""
    ours: dict[str, Any] = {"text_columns": list(columns.text), "text_separator": columns.separator}
    ours |= {"label_column": columns.label, "one_hot_columns": list(columns.one_hot)}
    ours |= {"label_delimiter": columns.label_delimiter, "labels": labels_of_config(config)}
    if dialect is not None:
        ours["dialect"] = asdict(dialect)
    config.task_specific_params = {**(getattr(config, "task_specific_params", None) or {}), OURS: ours}


def remembered_columns(config: Any) -> Columns | None:
    """The columns that a checkpoint was trained on; None if its configuration has none."""
    noted = notes_of(config)
    if not isinstance(noted.get("text_columns"), list) or not noted["text_columns"]:
        return None
    labels = tuple(noted.get("one_hot_columns") or [str(noted.get("label_column", "label"))])
    return Columns(tuple(noted["text_columns"]), labels, noted.get("text_separator"), noted.get("label_delimiter"))


def remembered_dialect(config: Any) -> Dialect | None:
    """Dialect by which the training of a checkpoint read its files; None if its configuration doesn't say."""
    noted = notes_of(config).get("dialect")
    if not isinstance(noted, dict):
        return None
    return Dialect(str(noted.get("kind")), noted.get("delimiter"), noted.get("quoting"))


def as_input(texts: str | Sequence[Any] | Mapping[str, Any], known: Columns | None) -> tuple[str, ...]:
    """One text, or a pair, as the model takes it: cells of columns are joined as those that it was trained on.

    Args:
        texts: one text; cells in the order of the columns; or cells by column, or by `text` and `text_pair`.
        known: the columns that the model was trained on.

    Raises:
        UserError: a column is missing, they are too many, or one stands for a pair.
    """
    if isinstance(texts, str):
        texts = [texts]
    if isinstance(texts, Mapping):
        texts = [texts[name] for name in columns_of_input(texts, known)]
    if odd := [cell for cell in texts if not (_is_text(cell) or is_absent(cell))]:
        raise UserError(f"{odd[0]!r:.60} is no text. Give a string.")
    cells = list(map(written, texts))
    if known is not None and known.separator is not None and len(cells) == len(known.text):
        return (known.joined(cells),)
    if len(cells) > 2:
        raise UserError(f"{len(cells)} texts stand where the model takes one, or two as a pair.")
    if known is not None and len(cells) != 1 + known.is_pair:
        kind, way_out = ("pairs of", "Give the second one too") if known.is_pair else ("single", "Leave out the second")
        raise UserError(f"The model was trained on {kind} texts. {way_out}: {spell('text_pair')}, or [a, b].")
    return tuple(cells)


def columns_of_input(there: Collection[str], known: Columns | None) -> Sequence[str]:
    """Of the columns of a row or a table, those that a model reads: as trained, or `text` and `text_pair`.

    Raises:
        UserError: one of them is missing.
    """
    trained = known.text if known is not None else ("text",)
    is_trained = known is not None and (set(trained) <= set(there) or "text" not in there)
    is_pair = "text_pair" in there or (known is not None and known.is_pair)
    names = trained if is_trained else ("text", "text_pair")[: 1 + is_pair]
    if missing := [name for name in names if name not in there]:
        what = f"The text has no {missing[0]!r}, but {', '.join(there)}"
        raise UserError(f"{what}. The model takes {', '.join(trained)}.")
    return names
