"""Rows that are lists of words, with a label for each word."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError
from .columns import TAGS, WORDS, Columns, require_columns
from .label_cells import LabelColumn
from .labels import TOKENS, Labels, apply_labels
from .options import DataArguments
from .table import Table

IGNORED = -100
"""The label of special tokens, and of all pieces of a word after its first."""


def labels_words(table: Table) -> bool:
    """Whether the data looks like labelled words: lists of words and of labels of the same lengths, usually named."""
    words, tags = _usual_column(table, WORDS), _usual_column(table, TAGS)
    if words is None or tags is None:
        return False
    pairs = zip(table.columns[words][:100], table.columns[tags][:100], strict=True)
    return all(isinstance(w, list) and isinstance(t, list) and len(w) == len(t) for w, t in pairs)


def _usual_column(table: Table, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in table.columns), None)


def word_columns(table: Table, data: DataArguments) -> Columns:
    """The columns of words and labels: named, or with usual names."""
    words = data.text_column_names or _usual_column(table, WORDS) or WORDS[0]
    return Columns((words,), data.label_column_name or _usual_column(table, TAGS) or TAGS[0])


def read_words(
    splits: Mapping[str, Table], columns: Columns, names: Sequence[str] | None
) -> tuple[Labels, dict[str, list[list[str]]], dict[str, list[Any] | None]]:
    """The labels, and for each split its words and the numbers of their labels; None where a test split has none.

    The labels are in the order of a trained model (`names`), of the data set, or sorted.

    Raises:
        UserError: a row has no lists, or lists of different lengths, or a word has no label; a label is unknown in
            training, or there is only one.
    """
    words: dict[str, list[list[str]]] = {}
    read: dict[str, LabelColumn | None] = {}
    for split, table in splits.items():
        words[split], read[split] = _words_and_labels(table, columns, split)
    first = next(iter(splits.values()))
    names = names or first.classes.get(columns.label)
    if names is None:
        tags = set(read["train"].items()) if read["train"] is not None else set()
        names = sorted(tags, key=int) if all(tag.isdecimal() for tag in tags) else sorted(tags)
    if len(names) < 2:
        raise UserError(f"All words have the label {', '.join(names)!r}. Give examples of at least two labels.")
    labels = Labels(TOKENS, tuple(map(str, names)))
    numbers = {split: None if column is None else apply_labels(labels, column) for split, column in read.items()}
    return labels, words, numbers


def _words_and_labels(table: Table, columns: Columns, split: str) -> tuple[list[list[str]], LabelColumn | None]:
    """The words and the names of the labels of each row; None for labels that a test split lacks."""
    name, label = columns.text[0], columns.label
    is_labelled = label in table.columns or split != "test"
    require_columns(table, [name], "--text-column-names", split)
    require_columns(table, [label] * is_labelled, "--label-column-name", split)
    known = table.classes.get(label)
    words, named = list(table.columns[name]), []
    every = list(table.columns[label]) if is_labelled else []
    for row, cell in enumerate(words):
        if not isinstance(cell, list) or not all(isinstance(word, str) for word in cell):
            raise UserError(
                f"The {split} data has {cell!r:.60} in column {name!r}, {table.where(row)}. --task tokens needs a "
                'list of words in each row: {"tokens": ["Ada", "sang"], "tags": ["B-PER", "O"]}, as .json, .jsonl or '
                ".parquet, or a word and its label per line in a .conll."
            )
        if not is_labelled:
            continue
        tags = every[row]
        if not isinstance(tags, list) or len(tags) != len(cell):
            raise UserError(
                f"The {split} data has {len(cell)} words and {tags!r:.60} in column {label!r}, {table.where(row)}. "
                "Give a list with one label for each word."
            )
        if None in tags:
            raise UserError(f"The {split} data has a word without a label: {tags!r:.60}. Give each word one.")
        named.append([str(tag) if known is None else known[tag] for tag in tags])
    return words, LabelColumn(label, split, named, "text", True, known, table) if is_labelled else None
