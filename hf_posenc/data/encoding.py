"""Texts as token ids."""

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from datasets import Dataset, Features, List, Value, concatenate_datasets
from tqdm import tqdm

logger = logging.getLogger(__name__)

_CHUNK = 1000


def encode_texts(
    texts: Sequence[Sequence[str]],
    labels: Sequence[Any] | None,
    tokenizer: Any,
    max_length: int,
    problem_type: str = "single_label_classification",
    *,
    split: str = "train",
) -> Dataset:
    """Tokenizes texts: columns of the tokenizer, and `labels`. Says how many inputs are truncated.

    Args:
        texts: `(first,)`, or `(first, second)` for pairs.
        labels: in the model's form; None: there are none.
        tokenizer: of transformers.
        max_length: longer inputs are cut to this many tokens.
        problem_type: the task, which decides the type of `labels`.
        split: the name of the split, for messages.
    """
    chunks: list[Dataset] = []
    cut, count = 0, len(texts[0])
    for start in tqdm(range(0, count, _CHUNK), f"Tokenizing {split}", leave=False, disable=None, delay=2):
        batch = tokenizer(
            *(list(column[start : start + _CHUNK]) for column in texts), truncation=True, max_length=max_length
        )
        if batch.encodings is not None:
            cut += sum(bool(encoding.overflowing) for encoding in batch.encodings)
        else:  # a Python tokenizer doesn't say; inputs at the limit count as truncated
            cut += sum(len(ids) >= max_length for ids in batch["input_ids"])
        chunks.append(Dataset.from_dict(dict(batch)))
    if cut:
        logger.warning(
            f"{cut} of {count} {split} inputs ({cut / count:.1%}) have more than {max_length} tokens and were "
            "truncated. Raise --max-seq-length to keep them whole."
        )
    encoded = concatenate_datasets(chunks)
    if labels is None:
        return encoded
    kinds = {"regression": Value("float32"), "multi_label_classification": List(Value("float32"))}
    feature: Any = kinds.get(problem_type, Value("int64"))
    column = Dataset.from_dict({"labels": list(labels)}, features=Features({"labels": feature}))
    return encoded.add_column("labels", column.data.column("labels"), feature=feature)


def all_texts(texts: Sequence[Sequence[str]]) -> Iterator[str]:
    """All texts, both of each pair, to train a tokenizer on."""
    return chain.from_iterable(zip(*texts, strict=True))
