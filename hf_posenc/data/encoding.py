"""Texts as token ids."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value, concatenate_datasets
from tqdm import tqdm

from .words import IGNORED

logger = logging.getLogger(__name__)

TRUNCATION_WARNING_SHARE = 0.01
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
    """Tokenizes texts: columns of the tokenizer, and `labels`. Warns when more than 1 % of the inputs are truncated.

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
    if cut > TRUNCATION_WARNING_SHARE * count:
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


def word_pieces(tokenizer: Any, words: Sequence[str], max_length: int) -> tuple[dict[str, list[int]], dict[int, int]]:
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


def encode_words(
    words: Sequence[Sequence[str]],
    tags: Sequence[Sequence[int]] | None,
    tokenizer: Any,
    max_length: int,
    *,
    split: str = "train",
) -> Dataset:
    """Token ids, and with `tags` the number of a label for the first piece of each word, -100 elsewhere."""
    encoded: dict[str, list[Any]] = {}
    cut = 0
    for row, sentence in enumerate(words):
        tokens, firsts = word_pieces(tokenizer, sentence, max_length)
        for name in tokens:
            encoded.setdefault(name, []).append(tokens[name])
        if tags is not None:
            aligned = [IGNORED] * len(tokens["input_ids"])
            for word, place in firsts.items():
                aligned[place] = tags[row][word]
            encoded.setdefault("labels", []).append(aligned)
        cut += len(sentence) - len(firsts)
    if cut:
        logger.warning(
            f"{cut} {split} words have no token, or are beyond {max_length} tokens, and aren't counted. Raise "
            "--max-seq-length to keep long rows whole."
        )
    return Dataset.from_dict(encoded)


def all_texts(texts: Sequence[Sequence[Any]]) -> Iterator[str]:
    """All texts, both of each pair, words joined by blanks, to train a tokenizer on."""
    for row in zip(*texts, strict=True):
        yield from (text if isinstance(text, str) else " ".join(text) for text in row)
