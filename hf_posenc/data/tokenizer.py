"""Tokenizers: one that is trained here on the training text, and what one has cut or doesn't know."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BatchEncoding, BertTokenizer, PreTrainedTokenizerFast

from ..errors import UserError, spell

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
DEFAULT_MAX_LENGTH = 512
_ALPHABET = 1000
"""Characters that are kept in any vocabulary; in a larger one they may be half of its tokens."""
_UNKNOWN = 0.01
"""Share of unknown tokens above which it is said."""


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 8000,
    *,
    model_max_length: int = DEFAULT_MAX_LENGTH,
    do_lower_case: bool = True,
) -> PreTrainedTokenizerFast:
    """Trains BERT's WordPiece tokenizer ([CLS] a [SEP] b [SEP]); the same text gives the same tokenizer.

    Args:
        texts: the training text.
        vocab_size: most tokens that the vocabulary may have, unless special ones and single characters are more.
        model_max_length: inputs are truncated to this many tokens.
        do_lower_case: ignore case and accents.

    Raises:
        UserError: no text fits into the length, or there is none.
    """
    if model_max_length < 3:
        wanted = "leaves no room for text. Give at least 3 tokens."
        raise UserError(wanted, parameter="max_length", value=model_max_length)
    bert = BertTokenizer(do_lower_case=do_lower_case).backend_tokenizer
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word, _ in bert.pre_tokenizer.pre_tokenize_str(bert.normalizer.normalize_str(text)))
    if not words:
        raise UserError(f"There is no text to train a tokenizer on. Name a trained one with {spell('tokenizer')}.")
    # The trainer numbers characters and their ## forms in the order of a hash table that differs from process to
    # process, and breaks ties by number. Numbering them beforehand makes the same text give the same vocabulary.
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts.update(dict.fromkeys(word, count))
    most = max(_ALPHABET, vocab_size // 2)
    alphabet = sorted(sorted(counts, key=lambda char: (-counts[char], char))[:most])
    inside = {char for word in words for char in word[1:]}
    pieces = [f"##{char}" for char in alphabet if char in inside]
    specials = list(SPECIAL_TOKENS.values())
    trainer = trainers.WordPieceTrainer(
        vocab_size=max(vocab_size, len(specials) + len(pieces) + len(alphabet)),
        special_tokens=[*specials, *alphabet, *pieces],
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    raw = Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS["unk_token"]))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.train_from_iterator(([word] * count for word, count in sorted(words.items())), trainer)
    # Here the pieces are special only to the trainer: a fresh tokenizer knows the five as special. It isn't saved as a
    # BertTokenizer, which without its file would be one of five tokens, and no error.
    return PreTrainedTokenizerFast(
        tokenizer_object=BertTokenizer(raw.get_vocab(), do_lower_case=do_lower_case).backend_tokenizer,
        model_max_length=model_max_length,
        model_input_names=BertTokenizer.model_input_names,
        clean_up_tokenization_spaces=False,
        **SPECIAL_TOKENS,
    )


def cut_rows(encoded: BatchEncoding, max_length: int) -> list[int]:
    """The rows that a tokenizer cut to a length; one in Python doesn't say so: all its rows that long count as cut."""
    full = [row for row, ids in enumerate(encoded["input_ids"]) if len(ids) >= max_length]
    return [row for row in full if encoded.encodings is None or encoded.encodings[row].overflowing]


def doubts_of_unknown(encoded: Mapping[str, Dataset], tokenizer: Any) -> list[str]:
    """A sentence on each split that has many unknown tokens, all of which are one to the model.

    Args:
        encoded: the splits as token ids.
        tokenizer: of transformers. One that knows all bytes has no unknown tokens.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id):  # which may stand in any text
        return []
    doubts = []
    for split, part in encoded.items():
        ids = pc.list_flatten(part.with_format("arrow")[:]["input_ids"]).to_numpy()
        if (share := float(np.mean(ids == unknown))) > _UNKNOWN:
            what = f"{share:.1%} of the tokens of the {split} texts are {tokenizer.unk_token}"
            doubts.append(f"{what}: the tokenizer doesn't know their characters, and the model can't tell them apart.")
    return doubts
