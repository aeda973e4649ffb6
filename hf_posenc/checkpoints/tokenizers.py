"""The tokenizer of a checkpoint: read, and checked against its `tokenizer.json`."""

import json
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import cached_file

from ..data.reading import readable
from ..errors import UserError, check_local
from .files import VOCABULARIES


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


def load_folder_tokenizer(folder: Path, source: str) -> PreTrainedTokenizerBase | None:
    """The checkpoint's tokenizer, or None if it has none.

    Raises:
        UserError: it has one that can't be read.
    """
    if not any((folder / name).is_file() for name in VOCABULARIES):
        return None
    with readable(f"{source!r}: its tokenizer", "Copy it anew, or take the tokenizer's files out of the folder."):
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.init_kwargs.pop("auto_map", None)  # names code that isn't copied
    return tokenizer
