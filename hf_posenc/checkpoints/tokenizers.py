"""The tokenizer of a checkpoint: its ids fit the embeddings, and are those of its `tokenizer.json`."""

import json
import math
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import is_protobuf_available, is_sentencepiece_available

from ..errors import UserError, readable, spell
from ..model.configuration_posenc import PosEncConfig
from .files import PIECES, VOCABULARIES, read_json
from .opening import Checkpoint, find_folder

REFERENCE = "tokenizer.json"
_WAY_OUT = "Copy it anew, or take the tokenizer's files out of the folder."


def open_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """A trained tokenizer by folder or Hub name, for a new model.

    Raises:
        UserError: there is none, it can't be read, or it couldn't serve a model.
    """
    folder = find_folder(name)
    if not _has_tokenizer(folder):
        raise UserError(f"{name!r} holds no tokenizer. Give a folder with tokenizer files or a Hub name.")
    tokenizer = _read_tokenizer(folder, name, trust_remote_code=False)
    check_ids(tokenizer, folder, name, of_weights=False)
    return tokenizer


def load_tokenizer(checkpoint: Checkpoint, config: Any) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a checkpoint, or None if it has none. Its ids aren't compared yet: see `check_ids`.

    Args:
        checkpoint: opened.
        config: of the model, with the sizes of its tables.

    Raises:
        UserError: it can't be read, or couldn't serve a model with these embeddings.
    """
    if not _has_tokenizer(checkpoint.folder):
        return None
    tokenizer = _read_tokenizer(checkpoint.folder, checkpoint.name, checkpoint.trust_remote_code)
    with readable(f"{checkpoint.name!r}: its tokenizer", _WAY_OUT):
        encoded = tokenizer("a")  # with what a template puts around it
        types = encoded.get("token_type_ids", [0])
    largest = max([largest_id(tokenizer), *encoded["input_ids"]])
    contradiction = None
    if largest >= config.vocab_size:
        token = tokenizer.convert_ids_to_tokens(largest)
        contradiction = f"has token {largest}, {token!r}, and the model has vocab_size={config.vocab_size}"
    elif (kinds := getattr(config, "type_vocab_size", 0)) and max(types, default=0) >= kinds:
        contradiction = f"gives token type {max(types)}, and the model has type_vocab_size={kinds}"
    if contradiction is not None:
        way_out = "They don't belong together: put the model's own tokenizer into the folder."
        raise UserError(f"{checkpoint.name!r}: its tokenizer {contradiction}. {way_out}")
    return tokenizer


def load_checked_tokenizer(checkpoint: Checkpoint, config: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint that answers: as `load_tokenizer`, with ids that are those of its `tokenizer.json`.

    For a model of transformers' own it pads on its class's side, whatever its files say.

    Raises:
        UserError: there is none, or another than the weights were trained with.
    """
    tokenizer = load_tokenizer(checkpoint, config)
    if tokenizer is None:
        raise UserError(
            f"{checkpoint.name!r} has no tokenizer. Save it into that folder: "
            f"AutoTokenizer.from_pretrained(ORIGINAL).save_pretrained({checkpoint.name!r})."
        )
    check_ids(tokenizer, checkpoint.folder, checkpoint.name)
    if config.model_type != PosEncConfig.model_type:  # on the left others count padding, and take it for [CLS]
        tokenizer.padding_side = type(tokenizer).padding_side
    return tokenizer


def without_cuts(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer without its last call's truncation and padding, which it would save into its `tokenizer.json`.

    transformers sets both anew at each call; who reads that file alone would cut and pad as that call did.
    """
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


def largest_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The largest number of a token; numbers may have gaps."""
    return max(tokenizer.get_vocab().values())


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in VOCABULARIES)


def _read_tokenizer(folder: Path, name: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    if "fast_tokenizer_files" in read_json(folder / "tokenizer_config.json", name, dict):
        raise UserError(
            f"{name!r}: tokenizer_config.json has fast_tokenizer_files, by which another file than {REFERENCE} would "
            f"be read. Delete that key, and call the file {REFERENCE}."
        )
    pieces = next((file for file in PIECES if (folder / file).is_file()), None)
    can_build = is_sentencepiece_available() and is_protobuf_available()
    if pieces is not None and not (folder / REFERENCE).is_file() and not can_build:
        raise UserError(
            f"{name!r} has {pieces} and no {REFERENCE}, and transformers needs sentencepiece to make a tokenizer of "
            "it: pip install sentencepiece protobuf."
        )
    with readable(f"{name!r}: its tokenizer", _WAY_OUT):
        # False, and not None: transformers would ask on the terminal whether to run code.
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    tokenizer.init_kwargs.pop("auto_map", None)  # names code that isn't copied
    length: Any = tokenizer.model_max_length
    if type(length) not in (int, float) or not 0 < length < math.inf or length != int(length):
        raise UserError(
            f"{name!r}: tokenizer_config.json has model_max_length={length!r}. Give a positive whole number, or delete "
            "that key."
        )
    tokenizer.model_max_length = int(length)
    if tokenizer.pad_token not in tokenizer.get_vocab():
        what = f"has no padding token in its vocabulary (pad_token={tokenizer.pad_token!r}), which batches need"
        raise UserError(f"The tokenizer of {name!r} {what}. Name another one.")
    return tokenizer


def check_ids(
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    name: str,
    *,
    allowed: bool = False,
    is_saved: bool = False,
    of_weights: bool = True,
) -> list[str]:
    """Refuses a tokenizer that gives other ids than its source's `tokenizer.json`.

    transformers builds some tokenizers from their class instead of from that file, so that ids may change in silence,
    and with them which weights a word meets. Compared are 200 texts in this package: prose, digits, accents, scripts,
    emoji, code, white space, long words.

    Args:
        tokenizer: as it was loaded.
        folder: that it was loaded from.
        name: what the user called that.
        allowed: ids may differ.
        is_saved: it will be saved with a model, so that what it gives when it is loaded anew is compared.
        of_weights: weights lie beside it, of which an option says that other ids may pass.

    Returns:
        A sentence where something is to be said: ids differ, or there is no such file.

    Raises:
        UserError: ids differ, and may not.
    """
    if not (folder / REFERENCE).is_file():
        size = f"It has {len(tokenizer):,} tokens."  # of a class whose files are missing, its special ones alone
        return [f"Whether the tokenizer gives the right ids is unchecked: there is no {REFERENCE}. {size}"]
    texts = json.loads(resources.files(__package__).joinpath("tokenizer_texts.json").read_text(encoding="utf-8"))
    reference = Tokenizer.from_file(str(folder / REFERENCE))
    reference.no_truncation()
    reference.no_padding()
    expected = [encoding.ids for encoding in reference.encode_batch(texts)]
    given = (_saved_and_loaded(tokenizer) if is_saved else tokenizer)(texts, truncation=False, verbose=False)[
        "input_ids"
    ]
    other = [row for row in range(len(texts)) if given[row] != expected[row]]
    if not other:
        return []
    row = min(other, key=lambda row: len(texts[row]))
    wanted, got = expected[row], given[row]
    first = next(at for at in range(len(wanted) + 1) if wanted[: at + 1] != got[: at + 1])
    before, now = (" ".join(map(str, map(reference.id_to_token, ids[first:][:16]))) for ids in (wanted, got))
    what = (
        f"The tokenizer gives other ids than its {REFERENCE} for {len(other)} of {len(texts)} texts: "
        f"{texts[row][:60]!r} becomes, from token {first} on, {now} instead of {before}."
    )
    if allowed:
        return [what]
    way_out = "Set tokenizer_class to 'PreTrainedTokenizerFast' in tokenizer_config.json, which reads that file alone"
    if of_weights:
        what = f"{what} The weights were trained on the ids of the file."
        taken = spell("allow_other_tokens", True)
        way_out = f"{way_out}; or let a training or a conversion take it as it is: {taken}"
    raise UserError(f"{name!r}: {what} {way_out}.")


def _saved_and_loaded(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    with tempfile.TemporaryDirectory(prefix="posenc-") as folder:
        tokenizer.save_pretrained(folder)
        with readable(f"The tokenizer of {tokenizer.name_or_path!r}, once it is saved,", _WAY_OUT):
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
