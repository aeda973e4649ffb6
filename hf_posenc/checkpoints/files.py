"""The files of a checkpoint's folder: what they are called, and which of them hold the weights."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..data.reading import keys_once
from ..errors import UserError, readable

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
REPORT_NAME = "conversion.json"
"""What `convert` did."""
TRAINED_ON = "_trained_on.npy"
"""Hashes of a run's training texts, so that an evaluation says which it shares. Never published."""
PIECES = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")
"""Vocabularies of SentencePiece."""
VOCABULARIES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", *PIECES)
"""Files of which one alone shows that there is a tokenizer."""
TOKENIZER_FILES = (*VOCABULARIES, "special_tokens_map.json", "added_tokens.json", "merges.txt", "bpe.codes")
"""All files of a tokenizer; the last is that of PhoBERT and BERTweet."""


def training_marks(folder: Path) -> dict[str, bytes]:
    """The file of the hashes of the training texts by its name, to go with what is made of a checkpoint; or nothing."""
    path = folder / TRAINED_ON
    return {TRAINED_ON: path.read_bytes()} if path.is_file() else {}


def weight_files(folder: str | Path) -> dict[str, set[str]]:
    """The safetensors files that hold a checkpoint's weights, each with the names that the index promises in it.

    Without an index there is one file, and nothing is promised. Empty: there is neither.

    Raises:
        UserError: the index can't be read, or names what is no safetensors file of the folder.
    """
    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        return {WEIGHTS: set()}
    if not (folder / INDEX).is_file():
        return {}
    files: dict[str, set[str]] = {}
    index = read_json(folder / INDEX, str(folder), dict)
    if not isinstance(index.get("weight_map"), dict) or not index["weight_map"]:
        raise UserError(f"{str(folder / INDEX)!r} has no weight_map that names files. Copy the checkpoint anew.")
    for weight, name in index["weight_map"].items():
        files.setdefault(str(name), set()).add(weight)
    for name in files:
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise UserError(f"{str(folder / INDEX)!r} names {name!r}, which is no safetensors file of this folder.")
    return files


def read_json(path: Path, name: str, kind: type) -> Any:
    """The value in a JSON file of a checkpoint, a `dict` or a `list`; an empty one where there is no such file.

    Raises:
        UserError: the file can't be read, holds another kind of value, or a key twice.
    """
    if not path.is_file():
        return kind()
    with readable(f"{name!r}: {path.name}", "Copy the checkpoint anew."):
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=keys_once)
        if not isinstance(value, kind):
            raise TypeError(f"it holds no JSON {'object' if kind is dict else 'array'}")
        return value


@contextlib.contextmanager
def open_weights(path: Path) -> Iterator[Any]:
    """A safetensors file, opened; its header and length are checked, and no weight is read yet.

    Raises:
        UserError: it isn't there, is damaged or cut short.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{str(path)!r} is damaged or cut short ({reason}). Copy the checkpoint anew.") from error


def not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """The names of the tensors that hold NaN or infinity."""
    return [
        name for name, value in tensors if value.is_floating_point() and not bool(value.detach().isfinite().all().cpu())
    ]
