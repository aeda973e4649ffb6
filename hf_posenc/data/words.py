"""Rows that are lists of words, with a label for each word."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from datasets import ClassLabel, Dataset, DatasetDict, List
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..errors import UserError
from .columns import Columns, require_columns
from .encoding import word_pieces
from .in_memory import InMemory
from .labels import TOKENS, Labels
from .options import DataArguments

if TYPE_CHECKING:
    from ..training.arguments import ClassificationTrainingArguments


logger = logging.get_logger(__name__)

IGNORED = -100
"""The label of special tokens, and of all pieces of a word after its first."""


_WORDS = ("tokens", "words")
_TAGS = ("ner_tags", "tags", "labels", "pos_tags", "label")


class Words(InMemory):
    """Words in memory.

    Raises:
        UserError: a split or a column is missing, or a row has no lists, or lists of different lengths.
    """

    labels: Labels

    def __init__(self, found: DatasetDict, data: DataArguments, training: "ClassificationTrainingArguments") -> None:
        super().__init__(found, data, training, _find_columns)
        training.do_predict = training.do_predict or "test" in self.splits
        self.read = {split: _read(rows, self.columns, split) for split, rows in self.splits.items()}
        """The words and the labels of each row; None for labels that a test split lacks."""

    def number_labels(self, trained: Sequence[str] | None, problem_type: str | None = None) -> Labels:
        """Names in the order of a trained model, of the data set, or sorted. Turns labels into names.

        Raises:
            UserError: a label is missing, or unknown in training.
        """
        known = [_name_tags(rows, self.read[split][1], self.columns, split) for split, rows in self.splits.items()]
        names = trained or next(filter(None, known), None)
        if names is None:
            seen = {tag for row in self.read["train"][1] or () for tag in row}
            names = sorted(seen, key=int) if all(name.isdecimal() for name in seen) else sorted(seen)
        for split, (_, tags) in self.read.items():
            if unknown := sorted({tag for row in tags or () for tag in row} - set(names)):
                raise UserError(
                    f"The {split} data has the label {unknown[0]!r}, which training never saw. It knows "
                    f"{', '.join(names[:10])}."
                )
        if len(names) < 2:
            raise UserError(f"All words have the label {', '.join(names)!r}. Give examples of at least two labels.")
        self.labels = Labels(TOKENS, tuple(names))
        return self.labels

    def choose_rows(self) -> None:
        """Selects rows of all splits."""
        super().choose_rows()
        found = {}
        for split, rows in self.rows.items():
            words, tags = self.read[split if split in self.read else "train"]
            found[split] = [words[row] for row in rows], None if tags is None else [tags[row] for row in rows]
        self.read = found

    def texts(self) -> Iterator[str]:
        """The training rows, their words joined by blanks."""
        yield from map(" ".join, self.read["train"][0])

    def encode(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> dict[str, Dataset]:
        """Tokenizes all splits with `encode_words`."""
        return {
            split: encode_words(words, tags, tokenizer, self.labels, max_length, split)
            for split, (words, tags) in self.read.items()
        }


def _find_columns(dataset: Dataset, data: DataArguments) -> Columns:
    names = dataset.column_names
    words = data.text_column_names or next((name for name in _WORDS if name in names), _WORDS[0])
    tags = data.label_column_name or next((name for name in _TAGS if name in names), _TAGS[0])
    require_columns(dataset, [words], "--text_column_names")
    return Columns((words,), tags)


def _read(dataset: Dataset, columns: Columns, split: str) -> tuple[list[list[str]], list[list[Any]] | None]:
    """The words and labels of each row; None for labels that a test split lacks.

    Raises:
        UserError: a row has no lists, or lists of different lengths.
    """
    name = columns.text[0]
    words = list(dataset[name])
    unlabelled = columns.label not in dataset.column_names and split == "test"
    if not unlabelled:
        require_columns(dataset, [columns.label], "--label_column_name", split)
    tags: list[Any] = [None] * len(words) if unlabelled else list(dataset[columns.label])
    for row, (word_list, tag_list) in enumerate(zip(words, tags, strict=True), start=1):
        if not isinstance(word_list, list) or not all(isinstance(word, str) for word in word_list):
            raise UserError(
                f"The {split} data has {word_list!r:.60} in column {name!r}, row {row}. --task tokens needs a list of "
                'words in each row: {"tokens": ["Ada", "sang"], "tags": ["B-PER", "O"]}, as .json, .jsonl or .parquet.'
            )
        if not unlabelled and (not isinstance(tag_list, list) or len(tag_list) != len(word_list)):
            raise UserError(
                f"The {split} data has {len(word_list)} words and {tag_list!r:.60} in column {columns.label!r}, row "
                f"{row}. Give a list with one label for each word."
            )
    return words, None if unlabelled else tags


def _name_tags(rows: Dataset, tags: Sequence[list[Any]] | None, columns: Columns, split: str) -> Sequence[str] | None:
    """Turns the labels of a split into names; returns all names, if the data set declares them."""
    feature: Any = rows.features.get(columns.label)
    inner = feature.feature if isinstance(feature, List) else None
    for row in tags or ():
        for place, tag in enumerate(row):
            if tag is None:
                raise UserError(f"The {split} data has a word without a label: {row!r:.60}. Give each word one.")
            row[place] = inner.names[tag] if isinstance(inner, ClassLabel) else str(tag)
    return inner.names if isinstance(inner, ClassLabel) else None


def encode_words(
    words: Sequence[Sequence[str]],
    tags: Sequence[Sequence[str]] | None,
    tokenizer: PreTrainedTokenizerBase,
    labels: Labels,
    max_length: int,
    split: str,
) -> Dataset:
    """Token ids, and with `tags` a label for the first piece of each word, -100 elsewhere."""
    numbers = labels.numbers()
    encoded: dict[str, list[Any]] = {}
    cut = 0
    for row, sentence in enumerate(words):
        tokens, firsts = word_pieces(tokenizer, sentence, max_length)
        for name in tokens:
            encoded.setdefault(name, []).append(tokens[name])
        if tags is not None:
            aligned = [IGNORED] * len(tokens["input_ids"])
            for word, place in firsts.items():
                aligned[place] = numbers[tags[row][word]]
            encoded.setdefault("labels", []).append(aligned)
        cut += len(sentence) - len(firsts)
    if cut:
        logger.warning(
            f"{cut} {split} words have no token, or are beyond {max_length} tokens, and aren't counted. Raise "
            "--max_seq_length to keep long rows whole."
        )
    return Dataset.from_dict(encoded)
