"""Reading a checkpoint: its config and every tensor, from a folder or the Hub, without running anything in it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint_files import INDEX, WEIGHTS, open_weights, weight_files
from ..errors import UserError, is_local, one_line

PICKLE = "pytorch_model.bin"
PICKLES = "pytorch_model.bin.index.json"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors", "*.py"]


@dataclass
class Source:
    """A checkpoint as it was read."""

    name: str
    """What the user called it."""
    folder: Path
    raw: dict[str, Any]
    """Its config.json."""
    tensors: dict[str, Tensor]
    """Its weights by name, in float32."""
    dtype: torch.dtype
    """That of the weights in its files; float32 if they differ."""
    fingerprint: str
    """Of the weights in its files, see `fingerprint`."""


def find_folder(source: str, revision: str | None = None, allow_pickle: bool = False) -> Path:
    """A local folder, or that of a checkpoint on the Hub in the cache.

    Raises:
        UserError: there is neither.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if is_local(source):
        raise UserError(f"There is no folder {source!r}. Give the folder of a checkpoint, or its name on the Hub.")
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            source,
            revision=revision,
            allow_patterns=[*_WANTED, PICKLE] if allow_pickle else _WANTED,
            ignore_patterns=["[!0-9]*/*"],  # the folders of a sentence-transformer's modules begin with a number
        )
    except Exception as error:  # what a missing repository, a failed download or being offline raises differs
        raise UserError(
            f"{source!r} is no folder, and couldn't be had from the Hub: {one_line(error)[:300]} Give the "
            "folder of a checkpoint, or the name of one on the Hub."
        ) from error
    return Path(folder)


def read_config(folder: Path, source: str) -> dict[str, Any]:
    """config.json as it stands.

    Raises:
        UserError: there is none, or it isn't a JSON object.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{source!r} has no config.json. Give the folder of a checkpoint, or its name on the Hub.")
    raw = read_json(folder / "config.json", source, dict)
    for name, kind, what in (
        ("model_type", str, "a name"),
        ("architectures", list, "a list of names"),
        ("id2label", dict, "an object of numbers and names"),
    ):
        value = raw.get(name)
        fits = value is None or isinstance(value, kind)
        if not fits or (kind is list and not all(isinstance(item, str) for item in value or ())):
            raise UserError(f"{source!r}: config.json has {name}={value!r}. It must be {what}: correct it.")
    return raw


def read_json(path: Path, source: str, kind: type) -> Any:
    """The value in a JSON file of a checkpoint, a `dict` or a `list`.

    Raises:
        UserError: the file can't be read, or holds another kind of value.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{source!r}: {path.name} can't be read ({error}). Copy the checkpoint anew.") from error
    if not isinstance(value, kind):
        wanted = "object" if kind is dict else "array"
        raise UserError(f"{source!r}: {path.name} holds no JSON {wanted}. Copy the checkpoint anew.")
    return value


def read_weights(folder: Path, source: str, allow_pickle: bool = False) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its name.

    Raises:
        UserError: there are no weights, or only a pickle and `allow_pickle` isn't set; a file is cut short or lies
            elsewhere; or a weight isn't a finite real number.
    """
    tensors = _read_safetensors(folder, source) or _read_pickle(folder, source, allow_pickle)
    _check_numbers(tensors, source)
    return tensors


def _read_pickle(folder: Path, source: str, allow_pickle: bool) -> dict[str, Tensor]:
    """The weights of a checkpoint without safetensors files."""
    if (folder / PICKLES).is_file() and not (folder / PICKLE).is_file():
        raise UserError(
            f"{source!r} holds its weights as several pickles ({PICKLES}), which aren't read, not even with "
            "--allow-pickle. Load it in transformers, and save it as safetensors with save_pretrained."
        )
    if not (folder / PICKLE).is_file():
        way = "Give a checkpoint with weights in safetensors form."
        if not allow_pickle:  # without which it isn't even downloaded
            way += (
                f" If it has a {PICKLE}, a pickle, in which programs can hide, and you trust it, --allow-pickle "
                "(allow_pickle=True) reads that."
            )
        raise UserError(f"{source!r} holds no {WEIGHTS}. {way}")
    if not allow_pickle:
        raise UserError(
            f"{source!r} holds its weights as {PICKLE}, a pickle, in which programs can hide. If you trust it, say "
            "so (--allow-pickle, allow_pickle=True); it is read with weights_only=True."
        )
    try:
        tensors = torch.load(folder / PICKLE, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"{source!r}: {PICKLE} can't be read: {one_line(error)[:200]} Copy it anew, or find the checkpoint as "
            "safetensors."
        ) from error
    if not isinstance(tensors, dict) or not all(isinstance(key, str) for key in tensors):
        raise UserError(f"{source!r}: {PICKLE} doesn't hold weights by their names. Take another checkpoint.")
    return tensors


def _read_safetensors(folder: Path, source: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, promised in weight_files(folder).items():
        if not (folder / name).is_file():
            raise UserError(f"{source!r} lacks the file {name!r}, which {INDEX} names. Copy it too.")
        with open_weights(folder / name) as file:
            shard = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
        if missing := sorted(promised - set(shard)):
            raise UserError(f"{source!r}: {name} lacks {missing[0]!r}, which {INDEX} promises. Copy it anew.")
        tensors |= shard
    return tensors


def _check_numbers(tensors: dict[str, Tensor], source: str) -> None:
    """Raises a UserError where a weight isn't a finite real number: the model would give NaN, or garbage."""
    for key, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise UserError(f"{source!r}: {key!r} is {type(tensor).__name__}, not a tensor. Copy the checkpoint anew.")
        if tensor.dtype not in _DTYPES and not key.endswith("_ids"):  # counters, which are no weights
            dtype, *accepted = (str(dtype).removeprefix("torch.") for dtype in (tensor.dtype, *_DTYPES))
            raise UserError(
                f"{source!r}: {key!r} is {dtype}, and weights are {', '.join(accepted)}. If the checkpoint is "
                "quantised, convert the one that it was made from."
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise UserError(
                f"{source!r}: {key!r} holds a number that isn't finite (NaN or infinity). The checkpoint is "
                "damaged, or its training diverged: take another one."
            )


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """A SHA-256 of all weights and their names, however they are spread over files; in hexadecimal."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
