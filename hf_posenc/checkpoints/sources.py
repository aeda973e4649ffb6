"""Reads a checkpoint, from a folder or the Hub, through the class that it belongs to; nothing in it is run."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from ..data.reading import readable
from ..errors import UserError, is_local, one_line
from ..quiet import without_warnings
from .files import WEIGHTS, not_finite, open_weights, weight_files

PICKLE = "pytorch_model.bin"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
"""The kinds of numbers that weights may be, by safetensors' names."""
_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors", "*.py"]


@dataclass
class Source:
    """A checkpoint in a folder, before its weights are read."""

    name: str
    """What the user called it."""
    folder: Path
    raw: dict[str, Any]
    """Its config.json."""
    is_pickled: bool
    """Whether its weights are in a pickle, which the user allowed to be read."""
    stored: dict[str, Any]
    """The names in its files, and each weight's dtype there: safetensors' name for it where weights can't have it."""

    @property
    def dtype(self) -> torch.dtype:
        """That of the weights in its files; float32 if they differ."""
        kinds = {*self.stored.values()} & {*_DTYPES.values()}
        return kinds.pop() if len(kinds) == 1 else torch.float32

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The weights whose names hold a text, by their names in the files, in float32."""
        paths = [self.folder / name for name in weight_files(self.folder)]
        files = [_unpickled(self.folder, self.name)] if self.is_pickled else map(load_file, paths)
        return {key: value.float() for state in files for key, value in state.items() if part in key}


def open_source(source: str, folder: Path, raw: dict[str, Any], allow_pickle: bool) -> Source:
    """A checkpoint whose files of weights are whole, are safetensors or an allowed pickle, and hold real numbers.

    Raises:
        UserError: there are no weights, or only a pickle and `allow_pickle` isn't set; a file is cut short or lies
            elsewhere; or weights aren't real numbers.
    """
    files = weight_files(folder)
    if files:
        stored: dict[str, Any] = {}
        for name in files:
            with open_weights(folder / name) as file:
                kinds = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118  (not a dict)
            stored |= {key: _DTYPES.get(kind, kind) for key, kind in kinds.items()}
    elif allow_pickle and (folder / PICKLE).is_file():
        stored = {key: value.dtype for key, value in _unpickled(folder, source).items()}
    else:
        way = (
            f" If it has a {PICKLE}, a pickle, in which programs can hide, and you trust it, --allow-pickle "
            "(allow_pickle=True) reads that, with weights_only=True."
        )
        raise UserError(
            f"{source!r} holds no {WEIGHTS}{f' and no {PICKLE}' * allow_pickle}. Give a checkpoint with weights in "
            f"safetensors form.{way * (not allow_pickle)}"
        )
    for key, dtype in stored.items():
        if dtype not in _DTYPES.values() and not key.endswith("_ids"):  # counters, which are no weights
            raise UserError(
                f"{source!r}: {key!r} is {dtype}, and weights are {', '.join(_DTYPES)}. If the checkpoint is "
                "quantised, convert the one that it was made from."
            )
    return Source(source, folder, raw, not files, stored)


def _unpickled(folder: Path, source: str) -> dict[str, Tensor]:
    with readable(f"{source!r}: {PICKLE}", "Copy it anew, or find the checkpoint as safetensors."):
        tensors = torch.load(folder / PICKLE, map_location="cpu", weights_only=True)
        if not all(isinstance(key, str) and isinstance(value, Tensor) for key, value in tensors.items()):
            raise TypeError("it doesn't hold weights by their names.")
        return tensors


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
        UserError: there is none, it isn't a JSON object, or the folder is PEFT's.
    """
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"{source!r} holds a PEFT adapter (adapter_config.json). Merge it into its model first: "
            "merge_and_unload(), save_pretrained."
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{source!r} has no config.json. Give the folder of a checkpoint, or its name on the Hub.")
    return read_json(folder / "config.json", source, dict)


def read_json(path: Path, source: str, kind: type) -> Any:
    """The value in a JSON file of a checkpoint, a `dict` or a `list`.

    Raises:
        UserError: the file can't be read, or holds another kind of value.
    """
    with readable(f"{source!r}: {path.name}", "Copy the checkpoint anew."):
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, kind):
            raise TypeError(f"it holds no JSON {'object' if kind is dict else 'array'}")
        return value


@dataclass
class InItsClass:
    """A checkpoint's weights as a class of transformers, or ours, has read them."""

    model: PreTrainedModel
    """In float32, in evaluation mode."""
    state: dict[str, Tensor]
    """Its weights by the names of the class, without the encoder's prefix."""
    missing: set[str]
    """Those that the checkpoint doesn't have: they are random."""
    shapes: dict[str, tuple[Any, Any]]
    """Those of another shape than the configuration gives, random too: the checkpoint's shape, and the class's."""
    surplus: set[str]
    """Names in the checkpoint that the class doesn't have."""

    @property
    def random(self) -> set[str]:
        """The weights that aren't the checkpoint's."""
        return self.missing | set(self.shapes)


def read_in_class(source: Source, cls: Any, config: Any, prefix: str, **options: Any) -> InItsClass:
    """Reads a checkpoint's weights through the `from_pretrained` of a class, and says what didn't fit.

    `from_pretrained` knows older names, fused weights and several files; what is missing it draws at random.

    Args:
        source: the checkpoint.
        cls: of transformers, or ours.
        config: of the class.
        prefix: under which a class with a head holds the encoder; names here are without.
        options: further arguments of the class.

    Raises:
        UserError: the files can't be read, or a weight isn't finite.
    """
    try:
        with without_warnings():
            model, info = cls.from_pretrained(
                str(source.folder),
                config=config,
                use_safetensors=not source.is_pickled,
                dtype=torch.float32,
                key_mapping={r"^module\.": ""},  # saved from DataParallel
                ignore_mismatched_sizes=True,  # here, they are listed
                output_loading_info=True,
                **options,
            )
    except Exception as error:  # what a damaged file raises differs
        raise UserError(f"{source.name!r} can't be read as a {cls.__name__}: {one_line(error)[:300]}") from error
    state = {name.removeprefix(prefix): value.detach() for name, value in model.state_dict().items()}
    keys = {kind: {name.removeprefix(prefix) for name in info[f"{kind}_keys"]} for kind in ("missing", "unexpected")}
    shapes = {name.removeprefix(prefix): (tuple(has), tuple(wants)) for name, has, wants in info["mismatched_keys"]}
    check_finite(state, source.name)
    return InItsClass(model.eval(), state, keys["missing"], shapes, keys["unexpected"])


def check_finite(tensors: dict[str, Tensor], source: str) -> None:
    """Raises a UserError where a weight isn't a finite number: the model would give NaN, or garbage."""
    if bad := not_finite(tensors.items()):
        raise UserError(
            f"{source!r}: {listed(bad)} holds a number that isn't finite (NaN or infinity). The checkpoint is damaged, "
            "or its training diverged: take another one."
        )


def listed(names: Iterable[str]) -> str:
    """Names in quotes, the first four and their number where there are more."""
    names = sorted(names)
    return ", ".join(map(repr, names[:4])) + (f", ... ({len(names)} in all)" if len(names) > 4 else "")
