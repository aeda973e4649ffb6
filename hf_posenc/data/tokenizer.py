"""Tokenizers: a trained one by name, checked against its `tokenizer.json`, or one trained here on the training text."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, BatchEncoding, BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file

from ..errors import UserError, check_local
from .reading import readable

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
DEFAULT_MAX_LENGTH = 512
MAX_ALPHABET = 1000


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
        vocab_size: most tokens that the vocabulary may have, special ones and single characters apart.
        model_max_length: inputs are truncated to this many tokens.
        do_lower_case: ignore case and accents.

    Raises:
        UserError: no text fits into the length, or there is none.
    """
    if model_max_length < 3:
        raise UserError(f"max_length={model_max_length} leaves no room for text. Give at least 3 tokens.")
    bert = BertTokenizer(do_lower_case=do_lower_case).backend_tokenizer
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word, _ in bert.pre_tokenizer.pre_tokenize_str(bert.normalizer.normalize_str(text)))
    if not words:
        raise UserError("There is no text to train a tokenizer on. Name a trained one with --tokenizer.")
    # The trainer numbers characters and their ## forms in the order of a hash table that differs from process to
    # process, and breaks ties by number. Numbering them beforehand makes the same text give the same vocabulary.
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts.update(dict.fromkeys(word, count))
    alphabet = sorted(sorted(counts, key=lambda char: (-counts[char], char))[:MAX_ALPHABET])
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


def load_tokenizer(name: str, **kwargs: Any) -> PreTrainedTokenizerBase:
    """A trained tokenizer by folder or Hub name.

    Raises:
        UserError: there is none, it can't be read, or it has no padding token.
    """
    check_local("--tokenizer", name)
    with readable(f"The tokenizer of {name!r}", "Give a folder with tokenizer files or a Hub name as --tokenizer."):
        tokenizer = AutoTokenizer.from_pretrained(name, **kwargs)
    if tokenizer.pad_token_id is None:
        raise UserError(f"The tokenizer {name!r} has no padding token, which batches need. Name another one.")
    return tokenizer


def check_tokens(
    tokenizer: PreTrainedTokenizerBase, source: str, *, revision: str | None = None, allowed: bool = False
) -> list[str]:
    """Refuses a tokenizer that, once it is saved, gives other ids than its source's `tokenizer.json`.

    transformers builds some tokenizers from their class instead of from that file, so that ids may change in silence,
    and with them which weights a word meets. Compared are 200 texts in this package: prose, digits, accents, scripts,
    emoji, code, white space, long words.

    Args:
        tokenizer: as it was loaded.
        source: the folder or Hub name that it was loaded from.
        revision: branch, tag or commit on the Hub.
        allowed: ids may differ.

    Returns:
        A sentence where something is to be said: ids differ, or there is no such file.

    Raises:
        UserError: ids differ, and may not.
    """
    path = cached_file(source, "tokenizer.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    if path is None:
        size = f"It has {len(tokenizer):,} tokens."  # of a class whose files are missing, its special ones alone
        return [f"Whether the tokenizer gives the right ids is unchecked: there is no tokenizer.json. {size}"]
    texts = json.loads(resources.files(__package__).joinpath("tokenizer_texts.json").read_text(encoding="utf-8"))
    reference = Tokenizer.from_file(path)
    reference.no_truncation()
    reference.no_padding()
    expected = [encoding.ids for encoding in reference.encode_batch(texts)]
    with tempfile.TemporaryDirectory(prefix="posenc-") as folder:
        tokenizer.save_pretrained(folder)
        given = AutoTokenizer.from_pretrained(folder)(texts, truncation=False, verbose=False)["input_ids"]
    other = [row for row in range(len(texts)) if given[row] != expected[row]]
    if not other:
        return []
    row = min(other, key=lambda row: len(texts[row]))
    wanted, got = expected[row], given[row]
    first = next(at for at in range(len(wanted) + 1) if wanted[: at + 1] != got[: at + 1])
    before, now = (" ".join(map(str, map(reference.id_to_token, ids[first:][:16]))) for ids in (wanted, got))
    what = (
        f"The tokenizer gives other ids than its tokenizer.json for {len(other)} of {len(texts)} texts: "
        f"{texts[row][:60]!r} becomes, from token {first} on, {now} instead of {before}."
    )
    if allowed:
        return [what]
    raise UserError(
        f"{source!r}: {what} The weights were trained on the ids of the file. Set tokenizer_class to "
        "'PreTrainedTokenizerFast' in tokenizer_config.json, which reads that file alone; or let `train` or `convert` "
        "take it as it is: --allow-other-tokens (allow_other_tokens=True)."
    )


def cut_rows(encoded: BatchEncoding, max_length: int) -> list[int]:
    """The rows that a tokenizer cut to a length; one in Python doesn't say so: all its rows that long count as cut."""
    full = [row for row, ids in enumerate(encoded["input_ids"]) if len(ids) >= max_length]
    return [row for row in full if encoded.encodings is None or encoded.encodings[row].overflowing]
