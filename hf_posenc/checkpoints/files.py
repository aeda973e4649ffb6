"""The files of a checkpoint's folder: what they are called, and which of them hold the weights."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import UserError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
REPORT_NAME = "conversion.json"
"""What `convert` did."""
TRAINED_ON = "_trained_on.npy"
"""Hashes of a run's training texts, so that an evaluation says which it shares. Never published."""
VOCABULARIES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"),
    *("sentencepiece.bpe.model", "spiece.model", "tokenizer.model"),
)
"""Files of which one alone shows that there is a tokenizer."""
TOKENIZER_FILES = (*VOCABULARIES, "special_tokens_map.json", "added_tokens.json", "merges.txt")


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
    try:
        for weight, name in json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].items():
            files.setdefault(str(name), set()).add(weight)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise UserError(f"{INDEX} can't be read ({error})") from error
    for name in files:
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise UserError(f"{INDEX} names {name!r}, which is no safetensors file of this folder")
    return files


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
        raise UserError(f"{path.name} is damaged or cut short ({reason})") from error


def not_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """The names of the tensors that hold NaN or infinity."""
    return [
        name for name, value in tensors if value.is_floating_point() and not bool(value.detach().isfinite().all().cpu())
    ]
