"""Columns of text and label: named, remembered in a checkpoint, or of the usual names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from ..errors import UserError
from ..options import Options, words
from .reading import names_of, where

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
    label: str = "label"
    separator: str | None = None
    """Joins all text columns to one text. None: two columns are a pair."""
    label_delimiter: str | None = None
    """Separates several labels in one cell."""
    one_hot: tuple[str, ...] = ()
    """Columns of 0 and 1, one for each label, instead of one column of labels."""

    @property
    def is_pair(self) -> bool:
        """Whether an example is two texts."""
        return len(self.text) == 2 and self.separator is None

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of labels."""
        return self.one_hot or (self.label,)

    def texts(self, table: Dataset) -> tuple[list[str], ...]:
        """The texts of all rows: `(first,)`, or `(first, second)` of pairs; a missing text is an empty one.

        Cells are joined unless all of a row are missing.

        Raises:
            UserError: a column isn't there, or holds lists, objects or bytes.
        """
        require_columns(table, self.text, "--text-column")
        columns = []
        for name in self.text:
            cells = table[name][:]
            if odd := next((row for row, cell in enumerate(cells, start=1) if not isinstance(cell, _CELL)), None):
                raise UserError(
                    f"Column {name!r} holds {cells[odd - 1]!r:.60} in {where(table, odd - 1)}, which is no text. Write "
                    "one string there, joining the parts of a list, or name another column with --text-column."
                )
            columns.append(list(map(_written, cells)))
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
        label = f"; label: {', '.join(self.labels)}" if set(self.labels) <= set(names) else ""
        more = f", ... ({len(unused)} columns)" if len(unused) > _SHOWN else ""
        return f"Text: {text}{label}" + (f"; not used: {', '.join(unused[:_SHOWN])}{more}" if unused else "")


def _written(cell: Any) -> str:
    """A cell as text; an empty one if it is missing, as NaN is, which differs from itself."""
    return "" if cell is None or cell != cell else str(cell)


_CELL = (str, int, float, type(None))
"""What a column of texts may hold."""


def find_columns(
    table: Dataset, options: Options, known: Columns | None = None, *, needs_label: bool = True
) -> Columns:
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
            the columns and the options for all that is missing.
    """
    names = names_of(table)
    text = _named(table, options.text_column, "--text-column")
    labels = _named(table, options.label_column, "--label-column")
    if known is not None and not text and set(known.text) <= set(names):
        text = known.text
    if known is not None and not labels and set(known.labels) <= set(names):
        labels = known.labels
    texts, usual_labels = _usual(names, _TEXTS, text), _usual(names, _LABELS, labels)
    if len(texts) != 1 or (needs_label and len(usual_labels) != 1):
        raise _unnamed(table, texts, usual_labels if needs_label else [labels])
    if not text and known is not None:
        _require_alike(texts[0], known)
    text = texts[0]
    labels = usual_labels[0] if len(usual_labels) == 1 else known.labels if known is not None else _LABELS[0]
    if len(text) > 2 and options.join is None and (known is None or known.text != text):
        raise UserError(f"--text-column names {len(text)} columns. Give one, two for pairs, or join them: --join ' '.")
    if set(labels) & set(text):
        raise UserError(f"Column {labels[0]!r} can't be both text and label. Name another with --label-column.")
    delimiter, separator = options.label_delimiter or None, options.join
    if known is not None:
        delimiter = delimiter or known.label_delimiter
        separator = known.separator if separator is None and len(text) > 1 else separator
    return Columns(text, ", ".join(labels), separator, delimiter, labels if len(labels) > 1 else ())


def _named(table: Dataset, option: str | None, spelt: str) -> tuple[str, ...]:
    """The column that an option names, or several joined by commas."""
    if option is None:
        return ()
    names = (option,) if option in table.column_names else tuple(words(option))
    if not names or len({*names}) < len(names):
        raise UserError(f"{spelt} {option!r} must name each column once, with commas between several: a,b.")
    require_columns(table, names, spelt)
    return names


def _usual(names: Sequence[str], usual: Sequence[tuple[str, ...]], chosen: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The columns that were chosen, or those of usual names; a part of a pair doesn't count by itself."""
    there = [chosen] if chosen else [columns for columns in usual if set(columns) <= set(names)]
    return [columns for columns in there if not any(set(columns) < set(others) for others in there)]


def _unnamed(table: Dataset, texts: list[tuple[str, ...]], labels: list[tuple[str, ...]]) -> UserError:
    """The error of columns that must be named: exactly one choice isn't missing."""
    names, head = names_of(table), table[:100]
    longest = max(names, key=lambda name: sum(len(str(cell)) for cell in head[name]))
    fewest = min((name for name in names if name != longest), key=lambda name: len({*map(str, head[name])}), default="")
    wanted, options = [], []
    for found, what, name, option in (
        (texts, "text or sentence, nor a pair such as text and text_pair", longest, "--text-column"),
        (labels, "label or labels", fewest or "NAME", "--label-column"),
    ):
        if len(found) != 1:
            several = " and ".join(", ".join(columns) for columns in found)
            wanted.append(f"{several} could all be meant" if found else f"no column is called {what}")
            options.append(f"{option} {','.join(found[0]) if found else name}")
    cells = [f"{name} ({next((cell for cell in head[name] if cell is not None), None)!r:.40})" for name in names]
    more = f", ... ({len(cells)} columns)" if len(cells) > _SHOWN else ""
    separated = ""
    if table.info.builder_name == "csv":
        separated = " If these are no names, write a first row of names; if they are several, say --delimiter ';'."
    return UserError(
        f"{table.info.dataset_name}: {'; '.join(wanted)}. It has {', '.join(cells[:_SHOWN])}{more}. Say which: such as "
        f"{' '.join(options)}.{separated}"
    )


def _require_alike(text: tuple[str, ...], known: Columns) -> None:
    """Refuses to read one text for a model of pairs, pairs for one of texts, or others than the columns it joins."""
    shared, is_joined = set(text) & set(known.text), known.separator is not None
    if is_joined or known.is_pair != (len(text) == 2) or (shared and len(shared) < len(known.text)):
        raise UserError(
            f"The model was trained on the text of {known.sentence(known.text).removeprefix('Text: ')}; the data has "
            f"{' and '.join(text)}. Rename its columns, or say what to read: --text-column {','.join(text)}."
        )


def require_columns(table: Dataset, names: Sequence[str], option: str, split: str = "") -> None:
    """Raises a UserError if a column isn't there; the message lists those that are."""
    if missing := [name for name in names if name not in names_of(table)]:
        there = ", ".join(map(repr, names_of(table)))
        raise UserError(
            f"{f'The {split} data' if split else table.info.dataset_name} has no column {missing[0]!r}. It has "
            f"{there}: name one with {option}."
        )


# ---- what a checkpoint remembers ------------------------------------------------------------------------------------

_OURS = "hf_posenc"


def notes_of(config: Any) -> dict[str, Any]:
    """What a checkpoint's configuration says in our name."""
    # Every transformers configuration has this field; transformers ignores our key.
    others = getattr(config, "task_specific_params", None)
    noted = others.get(_OURS) if isinstance(others, dict) else None
    return noted if isinstance(noted, dict) else {}


def note(config: Any, **values: Any) -> None:
    """Writes values in our name into a model's configuration, which is saved with the weights."""
    others = getattr(config, "task_specific_params", None) or {}
    config.task_specific_params = {**others, _OURS: {**notes_of(config), **values}}


def remember_columns(config: Any, columns: Columns) -> None:
    """Writes into a model's configuration how its texts were put together; what an earlier training noted goes."""
    config.task_specific_params = {**(getattr(config, "task_specific_params", None) or {}), _OURS: {}}
    note(
        config,
        text_columns=list(columns.text),
        text_separator=columns.separator,
        label_column=columns.label,
        label_delimiter=columns.label_delimiter,
        one_hot_columns=list(columns.one_hot),
    )


def remembered_columns(config: Any) -> Columns | None:
    """The columns that a checkpoint was trained on; None if its configuration has none."""
    noted = notes_of(config)
    if not isinstance(noted.get("text_columns"), list):
        return None
    marks = noted.get("text_separator"), noted.get("label_delimiter")
    text, label, one_hot = noted["text_columns"], noted.get("label_column"), noted.get("one_hot_columns") or ()
    return Columns(tuple(text), str(label), *marks, tuple(one_hot))


def as_input(texts: str | Sequence[Any] | Mapping[str, Any], known: Columns | None) -> tuple[str, ...]:
    """One text, or a pair, as the model takes it: cells of columns are joined as those that it was trained on.

    Args:
        texts: one text; cells in the order of the columns; or cells by column, or by `text` and `text_pair`.
        known: the columns that the model was trained on.

    Raises:
        UserError: a column is missing, or they are too many.
    """
    if isinstance(texts, str):
        return (texts,)
    if isinstance(texts, Mapping):
        trained = known is not None and set(known.text) <= set(texts)
        names = known.text if known is not None and trained else ("text", "text_pair")[: len(texts)]
        if missing := [name for name in names if name not in texts]:
            wanted = ", ".join(known.text) if known is not None else "text"
            raise UserError(f"The text has no {missing[0]!r}, but {', '.join(texts)}. The model takes {wanted}.")
        texts = [texts[name] for name in names]
    cells = list(map(_written, texts))
    if known is not None and known.separator is not None and len(cells) == len(known.text):
        return (known.joined(cells),)
    if len(cells) > 2:
        raise UserError(f"{len(cells)} texts stand where the model takes one, or two as a pair.")
    return tuple(cells)
