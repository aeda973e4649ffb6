"""Texts as token ids."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from tqdm import tqdm

from .preparing import PreparedData, texts_of

_CHUNK = 1000
_IDS = pa.list_(pa.int64())


def encode(
    prepared: PreparedData, tokenizer: Any, max_length: int, cut: Callable[[str, int], object] | None = None
) -> dict[str, Dataset]:
    """The splits as token ids and, where there are labels, `labels`.

    Args:
        prepared: the data.
        tokenizer: of transformers.
        max_length: longer inputs are cut to this many tokens.
        cut: called with the name of each split and how many of its texts were cut.
    """
    encoded = {}
    for split, part in prepared.splits.items():
        encoded[split], count = encode_texts(texts_of(part), tokenizer, max_length, split=split)
        if cut is not None:
            cut(split, count)
        if "labels" in part.column_names:
            labels = part.select_columns("labels")
            encoded[split] = concatenate_datasets([encoded[split], labels], axis=1)
    return encoded


def encode_texts(
    texts: Sequence[Sequence[str]], tokenizer: Any, max_length: int, *, split: str = "train"
) -> tuple[Dataset, int]:
    """Token ids of texts, and how many were cut.

    Args:
        texts: `(first,)`, or `(first, second)` for pairs.
        tokenizer: of transformers.
        max_length: longer inputs are cut to this many tokens.
        split: the name of the split, for the progress bar.
    """
    chunks: list[pa.Table] = []
    cut, count = 0, len(texts[0])
    for start in tqdm(range(0, count, _CHUNK), f"Tokenizing {split}", leave=False, disable=None, delay=2):
        batch = tokenizer(
            *(list(column[start : start + _CHUNK]) for column in texts), truncation=True, max_length=max_length
        )
        full = [row for row, ids in enumerate(batch["input_ids"]) if len(ids) >= max_length]
        # A Python tokenizer doesn't say what it cut; its inputs at the limit count as cut.
        cut += sum(batch.encodings is None or bool(batch.encodings[row].overflowing) for row in full)
        chunks.append(pa.table({name: pa.array(values, _IDS) for name, values in batch.items()}))
    return Dataset(pa.concat_tables(chunks)), cut
