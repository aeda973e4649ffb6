"""Columns of text and label: named, remembered in a checkpoint, or of the usual names."""

import datetime
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

        Raises:
            UserError: a column isn't there, or holds lists, objects or bytes, or numbers among texts.
        """
        require_columns(table, self.text, "--text-column")
        columns = []
        for name in self.text:
            cells = table[name][:]
            _check_text(table, name, cells)
            columns.append(["" if cell is None else str(cell) for cell in cells])
        return self.joined(columns)

    def joined(self, columns: Sequence[Sequence[str]]) -> tuple[list[str], ...]:
        """The columns as the model takes them: joined to one text, or as they are."""
        if self.separator is not None:
            return ([self.separator.join(cells) for cells in zip(*columns, strict=True)],)
        return tuple(map(list, columns))

    def sentence(self, names: Sequence[str]) -> str:
        """In words, with the columns that aren't used."""
        joined = f" (joined with {self.separator!r})" if self.separator is not None and len(self.text) > 1 else ""
        text = " and ".join(self.text) + (" (a pair)" if self.is_pair else joined)
        unused = [name for name in names if name not in (*self.text, *self.labels)]
        label = f"; label: {', '.join(self.labels)}" if set(self.labels) <= set(names) else ""
        more = f", ... ({len(unused)} columns)" if len(unused) > _SHOWN else ""
        return f"Text: {text}{label}" + (f"; not used: {', '.join(unused[:_SHOWN])}{more}" if unused else "")


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
    label, one_hot = _named_label(table, options.label_column, known)
    text, separator = _named_text(table, options, known)
    usual_texts, usual_labels = _usual(names, _TEXTS), _usual(names, _LABELS)
    lacks_text = not text and len(usual_texts) != 1
    lacks_label = label is None and needs_label and len(usual_labels) != 1
    if lacks_text or lacks_label:
        raise _unnamed(table, usual_texts if lacks_text else None, usual_labels if lacks_label else None)
    if not text:
        text = usual_texts[0]
        _require_alike(text, known)
    if label is None:
        label = usual_labels[0][0] if len(usual_labels) == 1 else known.label if known is not None else _LABELS[0][0]
    if options.join is not None and len(text) < 2:
        raise UserError(f"--join {options.join!r} joins several columns of text, and there is {text[0]!r} alone.")
    if options.label_column is None and needs_label:
        _refuse_answers(table, label)
    if label in text or set(one_hot) & set(text):
        raise UserError(f"Column {label!r} can't be both text and label. Name another with --label-column.")
    delimiter = options.label_delimiter or (known.label_delimiter if known else None)
    return Columns(text, label, separator, delimiter, one_hot)


def _refuse_answers(table: Dataset, label: str) -> None:
    """Refuses to take the answers of `hf-posenc predict` for labels that no option names."""
    names = names_of(table)
    if label in names and (f"input_{label}" in names or "confidence" in names):
        right = f"input_{label}" if f"input_{label}" in names else "NAME"
        raise UserError(
            f"{table.info.dataset_name}: column {label!r} seems to hold answers of `hf-posenc predict`, for there is "
            f"{f'input_{label}' if right != 'NAME' else 'confidence'!r} too. Say which holds the labels: "
            f"--label-column {right}."
        )


def _usual(names: Sequence[str], usual: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The usual names that are there; a part of a pair that is there doesn't count by itself."""
    there = [columns for columns in usual if set(columns) <= set(names)]
    return [columns for columns in there if not any(set(columns) < set(others) for others in there)]


def _unnamed(table: Dataset, texts: list[tuple[str, ...]] | None, labels: list[tuple[str, ...]] | None) -> UserError:
    """The error of columns that must be named; None: these needn't be."""
    names, head = names_of(table), table[:100]
    wanted, options = [], []
    longest = max(names, key=lambda name: sum(len(str(cell)) for cell in head[name]), default="")
    others = [name for name in names if name != longest]
    fewest = min(others, key=lambda name: len(set(map(str, head[name]))), default="")
    for found, what, name, option in (
        (texts, "text or sentence, nor a pair such as text and text_pair", longest, "--text-column"),
        (labels, "label or labels", fewest, "--label-column"),
    ):
        if found is not None:
            several = " and ".join(", ".join(columns) for columns in found)
            wanted.append(f"{several} could all be meant" if found else f"no column is called {what}")
            options.append(f"{option} {','.join(found[0]) if found else name or 'NAME'}")
    first = {name: next((cell for cell in head[name] if cell is not None), None) for name in names}
    cells = [f"{name} ({first[name]!r:.40})" for name in names]
    more = f", ... ({len(cells)} columns)" if len(cells) > _SHOWN else ""
    divided = next((mark for mark in (";", "\t", "|") if len(cells) == 1 and mark in names[0]), None)
    separated = "" if divided is None else f" If {divided!r} separates the columns: --delimiter {divided!r}."
    return UserError(
        f"{table.info.dataset_name}: {'; '.join(wanted)}. It has {', '.join(cells[:_SHOWN])}{more}. Say which: such as "
        f"{' '.join(options)}.{separated}{_no_names(table)}"
    )


def _named_text(table: Dataset, options: Options, known: Columns | None) -> tuple[tuple[str, ...], str | None]:
    """The text columns by option, or of the checkpoint, and what joins them."""
    if options.text_column is None:
        if known is not None and set(known.text) <= set(table.column_names):
            return known.text, known.separator if options.join is None else options.join
        return (), options.join
    text = _listed(table, options.text_column)
    require_columns(table, text, "--text-column")
    if len(text) > 2 and options.join is None:
        raise UserError(
            f"--text-column {','.join(text)} names {len(text)} columns. Give one, two for pairs, or join them with "
            "--join ' '."
        )
    if known is not None and known.text == text and options.join is None:
        return text, known.separator
    return text, options.join


def _require_alike(text: tuple[str, ...], known: Columns | None) -> None:
    """Refuses to read one text for a model of pairs, pairs for one of texts, or others than the columns it joins."""
    if known is None:
        return
    shared, is_joined = set(text) & set(known.text), known.separator is not None
    if is_joined or known.is_pair != (len(text) == 2) or (shared and len(shared) < len(known.text)):
        raise UserError(
            f"The model was trained on the text of {known.sentence(known.text).removeprefix('Text: ')}; the data has "
            f"{' and '.join(text)}. Rename its columns, or say what to read: --text-column {','.join(text)}."
        )


def _named_label(table: Dataset, option: str | None, known: Columns | None) -> tuple[str | None, tuple[str, ...]]:
    """The label column by option or of the checkpoint, and one-hot columns."""
    if option is not None:
        names = _listed(table, option)
        require_columns(table, names, "--label-column")
        return (names[0], ()) if len(names) == 1 else (", ".join(names), names)
    if known is not None and known.one_hot and set(known.one_hot) <= set(table.column_names):
        return known.label, known.one_hot
    return (known.label if known is not None and known.label in table.column_names else None), ()


def _check_text(table: Dataset, name: str, cells: Sequence[Any]) -> None:
    """Refuses lists, objects or bytes, and numbers among texts."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {str} or kinds <= {int, float, bool} or all(issubclass(kind, datetime.date) for kind in kinds):
        return
    row, cell = next((n, cell) for n, cell in enumerate(cells) if cell is not None and not isinstance(cell, str))
    raise UserError(
        f"Column {name!r} holds {cell!r:.60} in {where(table, row)}, which is no text. Write one string there, joining "
        "the parts of a list, or name another column with --text-column."
    )


def _listed(table: Dataset, option: str) -> tuple[str, ...]:
    """The column that an option names, or several joined by commas."""
    return (option,) if option in table.column_names else tuple(words(option))


def require_columns(table: Dataset, names: Sequence[str], option: str, split: str = "") -> None:
    """Raises a UserError if a column isn't there; the message lists those that are."""
    if missing := [name for name in names if name not in table.column_names]:
        there = ", ".join(map(repr, names_of(table)))
        raise UserError(
            f"{f'The {split} data' if split else table.info.dataset_name} has no column {missing[0]!r}. It has "
            f"{there}: name one with {option}.{_no_names(table)}"
        )


def _no_names(table: Dataset) -> str:
    return " If these are no names, write a first row of names." if table.info.builder_name == "csv" else ""


_OURS = "hf_posenc"


def notes_of(config: Any) -> dict[str, Any]:
    """What a checkpoint's configuration says in our name."""
    # Every transformers configuration has this field; transformers ignores our key.
    others = getattr(config, "task_specific_params", None)
    noted = others.get(_OURS) if isinstance(others, dict) else None
    return noted if isinstance(noted, dict) else {}


def note(config: Any, **values: Any) -> None:
    """Writes values in our name into a model's configuration, which is saved with the weights."""
    others = getattr(config, "task_specific_params", None)
    config.task_specific_params = {
        **(others if isinstance(others, dict) else {}),
        _OURS: {**notes_of(config), **values},
    }


def remember_columns(config: Any, columns: Columns) -> None:
    """Writes into a model's configuration how its texts were put together, and where the labels were."""
    note(
        config,
        text_columns=list(columns.text),
        text_separator=columns.separator,
        label_column=columns.label,
        label_delimiter=columns.label_delimiter,
        one_hot_columns=list(columns.one_hot),
    )


def remembered_columns(config: Any) -> Columns | None:
    """The columns that a checkpoint was trained on; None if its configuration has none in our form."""
    noted = notes_of(config)
    text, label = noted.get("text_columns"), noted.get("label_column")
    marks = noted.get("text_separator"), noted.get("label_delimiter")
    if not (isinstance(text, list) and text and all(isinstance(name, str) for name in (*text, label))):
        return None
    if not all(mark is None or isinstance(mark, str) for mark in marks):
        return None
    return Columns(tuple(text), str(label), *marks, tuple(noted.get("one_hot_columns") or ()))


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
    cells = ["" if cell is None else str(cell) for cell in texts]
    if known is not None and known.separator is not None and len(cells) == len(known.text):
        return (known.separator.join(cells),)
    if len(cells) > 2:
        raise UserError(f"{len(cells)} texts stand where the model takes one, or two as a pair.")
    return tuple(cells)
