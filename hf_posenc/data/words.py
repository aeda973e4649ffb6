"""Rows that are lists of words, with a label for each word."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError
from .columns import TAGS, WORDS, Columns, require_columns
from .labels import TOKENS, Labels
from .options import DataArguments
from .table import Table

IGNORED = -100
"""The label of special tokens, and of all pieces of a word after its first."""


def labels_words(table: Table) -> bool:
    """Whether the data looks like labelled words: lists of words and of labels of the same lengths, usually named."""
    words, tags = _usual(table, WORDS), _usual(table, TAGS)
    if words is None or tags is None:
        return False
    pairs = zip(table.columns[words][:100], table.columns[tags][:100], strict=True)
    return all(isinstance(w, list) and isinstance(t, list) and len(w) == len(t) for w, t in pairs)


def _usual(table: Table, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in table.columns), None)


def word_columns(table: Table, data: DataArguments) -> Columns:
    """The columns of words and labels: named, or with usual names."""
    words = data.text_column_names or _usual(table, WORDS) or WORDS[0]
    require_columns(table, [words], "--text-column-names")
    return Columns((words,), data.label_column_name or _usual(table, TAGS) or TAGS[0])


def read_words(table: Table, columns: Columns, split: str) -> tuple[list[list[str]], list[list[Any]] | None]:
    """The words and the names of the labels of each row; None for labels that a test split lacks.

    Raises:
        UserError: a row has no lists, or lists of different lengths, or a word has no label.
    """
    name = columns.text[0]
    words = list(table.columns[name])
    unlabelled = columns.label not in table.columns and split == "test"
    if not unlabelled:
        require_columns(table, [columns.label], "--label-column-name", split)
    tags: list[Any] = [None] * len(words) if unlabelled else list(table.columns[columns.label])
    known = table.classes.get(columns.label)
    named: list[list[Any]] = []
    for row, (word_list, tag_list) in enumerate(zip(words, tags, strict=True)):
        if not isinstance(word_list, list) or not all(isinstance(word, str) for word in word_list):
            raise UserError(
                f"The {split} data has {word_list!r:.60} in column {name!r}, {table.where(row)}. --task tokens needs a "
                'list of words in each row: {"tokens": ["Ada", "sang"], "tags": ["B-PER", "O"]}, as .json, .jsonl or '
                ".parquet, or a word and its label per line in a .conll."
            )
        if unlabelled:
            continue
        if not isinstance(tag_list, list) or len(tag_list) != len(word_list):
            raise UserError(
                f"The {split} data has {len(word_list)} words and {tag_list!r:.60} in column {columns.label!r}, "
                f"{table.where(row)}. Give a list with one label for each word."
            )
        if None in tag_list:
            raise UserError(f"The {split} data has a word without a label: {tag_list!r:.60}. Give each word one.")
        named.append([str(tag) if known is None else known[tag] for tag in tag_list])
    return words, None if unlabelled else named


def number_words(
    read: Mapping[str, tuple[list[list[str]], list[list[Any]] | None]], names: Sequence[str] | None
) -> tuple[Labels, dict[str, list[Any] | None]]:
    """The labels in the order of a trained model or of the data set (`names`), else sorted, and their numbers.

    Raises:
        UserError: a label is unknown in training, or there is only one.
    """
    if names is None:
        seen = {tag for row in read["train"][1] or () for tag in row}
        names = sorted(seen, key=int) if all(name.isdecimal() for name in seen) else sorted(seen)
    for split, (_, tags) in read.items():
        if unknown := sorted({tag for row in tags or () for tag in row} - set(names)):
            raise UserError(
                f"The {split} data has the label {unknown[0]!r}, which training never saw. It knows "
                f"{', '.join(names[:10])}."
            )
    if len(names) < 2:
        raise UserError(f"All words have the label {', '.join(names)!r}. Give examples of at least two labels.")
    labels = Labels(TOKENS, tuple(names))
    numbers = labels.numbers()
    return labels, {
        split: None if tags is None else [[numbers[tag] for tag in row] for row in tags]
        for split, (_, tags) in read.items()
    }
