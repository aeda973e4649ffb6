"""Texts as token ids."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from datasets import Dataset, Features, IterableDataset, List, Value
from transformers import BatchEncoding, PreTrainedTokenizerBase
from transformers.utils import logging

from .columns import Columns, check_text, require_columns
from .reading import reading

logger = logging.get_logger(__name__)

TRUNCATION_WARNING_SHARE = 0.01


def encode(
    dataset: Dataset,
    labels: Sequence[Any] | None,
    tokenizer: PreTrainedTokenizerBase,
    columns: Columns,
    max_length: int,
    problem_type: str,
    *,
    split: str = "train",
    num_proc: int | None = None,
    overwrite_cache: bool = False,
) -> Dataset:
    """Tokenizes one split: columns of the tokenizer, and `labels`.

    Warns when more than 1 % of the inputs are truncated.
    """
    require_columns(dataset, columns.text, "--text_column_names", split)
    check_text(dataset, columns.text)

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded = tokenize_texts(batch, tokenizer, columns, max_length)
        if encoded.encodings is not None:
            truncated = [bool(encoding.overflowing) for encoding in encoded.encodings]
        else:  # a Python tokenizer doesn't say; inputs at the limit count as truncated
            truncated = [len(ids) >= max_length for ids in encoded["input_ids"]]
        return {**encoded, "_truncated": truncated}

    encoded = dataset.map(
        tokenize,
        batched=True,
        remove_columns=dataset.column_names,
        num_proc=num_proc,
        load_from_cache_file=not overwrite_cache,
        desc=f"Tokenizing {split}",
    )
    cut = sum(encoded["_truncated"])
    if cut > TRUNCATION_WARNING_SHARE * len(encoded):
        logger.warning(
            f"{cut} of {len(encoded)} {split} inputs ({cut / len(encoded):.1%}) have more than {max_length} tokens and "
            "were truncated. Raise --max_seq_length to keep them whole."
        )
    encoded = encoded.remove_columns("_truncated")
    if labels is None:
        return encoded
    # A new column: numbers written over a column of strings would become strings.
    feature: Any = Value("int64")
    if problem_type == "regression":
        feature = Value("float32")
    elif problem_type == "multi_label_classification":
        feature = List(Value("float32"))
    column = Dataset.from_dict({"labels": list(labels)}, features=Features({"labels": feature}))
    return encoded.add_column("labels", column.data.column("labels"), feature=feature)


def tokenize_texts(
    batch: Mapping[str, list[Any]], tokenizer: PreTrainedTokenizerBase, columns: Columns, max_length: int
) -> BatchEncoding:
    """The texts of a batch of rows as token ids."""
    first, second = columns.texts(batch)
    return tokenizer(first, second, truncation=True, max_length=max_length)


def texts(rows: Dataset | IterableDataset, columns: Columns, files: Sequence[str] = ()) -> Iterator[str]:
    """All texts of some rows, both of each pair, to train a tokenizer on; errors name the files."""
    with reading("The training data", "Mend the data, or leave these rows out.", files):
        for batch in rows.select_columns(list(columns.text)).iter(1000):
            first, second = columns.texts(cast(dict[str, list[Any]], batch))
            yield from first
            yield from second or ()


def word_pieces(
    tokenizer: PreTrainedTokenizerBase, words: Sequence[str], max_length: int
) -> tuple[dict[str, list[int]], dict[int, int]]:
    """A sentence as at most `max_length` tokens, and the place of each word's first token.

    The words are joined by blanks, as they stand in a text that is labelled later, and found by their characters.
    """
    encoded = tokenizer(" ".join(words), truncation=True, max_length=max_length, return_offsets_mapping=True)
    owner = np.repeat(np.arange(len(words)), [len(word) + 1 for word in words])  # a blank belongs to the word before
    firsts: dict[int, int] = {}
    for place, (start, end) in enumerate(encoded.pop("offset_mapping")):
        if end > start:  # a byte-level token may begin with the blank before its word
            firsts.setdefault(int(owner[end - 1]), place)
    return dict(encoded), firsts
