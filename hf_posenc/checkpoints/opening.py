"""The one door to a checkpoint, whoever names it: its folder, its config.json and the kinds of its weights are checked.

Nothing in it is run, and no weight is read yet: `loading` and `tokenizers` read what was opened here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from torch import Tensor

from ..data.columns import OURS
from ..errors import UserError, fits, is_local, one_line, spell
from ..files import json_text
from ..tasks import LABELLED, task_of
from .files import INDEX, PICKLE, WEIGHTS, open_weights, read_json, weight_files

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
"""The kinds of numbers that weights may be, by safetensors' names."""
_DESCRIBED = ["*.json", "*.txt", "*.model", "*.codes", "*.py", "README.md"]
"""What is fetched from the Hub beside the weights."""
COUNTERS = (".position_ids", ".token_type_ids")
"""How the names of counters end, which older BERTs hold among their weights."""
_OF_A_LICENSE = ("license", "license_name", "license_link")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in a folder, opened.

    Attributes:
        name: what the user called it.
        folder: of its files; for a name on the Hub, in the cache.
        raw: its config.json as it stands.
        allow_pickle: whether the user allowed a pickle to be read.
        trust_remote_code: whether the user allowed its code to be run.
    """

    name: str
    folder: Path
    raw: dict[str, Any]
    allow_pickle: bool = False
    trust_remote_code: bool = False

    @property
    def task(self) -> str | None:
        """The task of the head that it was saved with; None if its class is of no known task."""
        return next(filter(None, map(task_of, self.raw.get("architectures") or ())), None)

    @property
    def is_pickled(self) -> bool:
        """True where its weights are in a pickle alone."""
        return not weight_files(self.folder) and (self.folder / PICKLE).is_file()

    @property
    def hub_name(self) -> str | None:
        """Its name on the Hub; None: a folder of this machine."""
        return None if is_local(self.name) else self.name

    @property
    def lineage(self) -> dict[str, Any]:
        """Where it comes from, in the words of a card: `base_model`, a name on the Hub, and the fields of its licence.

        The base model of a folder is the one that its card names, or several; a name on the Hub is its own.
        """
        try:
            card = ModelCard.load(self.folder / "README.md").data.to_dict()
        except Exception:  # what a missing or a broken card raises differs
            card = {}
        fields = {name: card[name] for name in _OF_A_LICENSE if card.get(name)}
        link = str(fields.get("license_link", "://"))
        if "://" not in link:  # a file beside the card, which doesn't come along
            del fields["license_link"]
            if self.hub_name is not None:
                fields["license_link"] = f"https://huggingface.co/{self.hub_name}/blob/main/{link}"
        named = self.hub_name or card.get("base_model")
        names = named if isinstance(named, list) else [named]
        is_on_hub = all(isinstance(name, str) and not is_local(name) for name in names)
        return {"base_model": named} | fields if is_on_hub else fields

    @cached_property
    def stored(self) -> Mapping[str, torch.dtype]:
        """The names in its files of weights, and how each is stored.

        Raises:
            UserError: there are no weights, or only a pickle that isn't allowed; a file is damaged or lies elsewhere;
                or weights aren't real numbers.
        """
        kinds = self._kinds()
        for key, kind in kinds.items():
            if kind not in _DTYPES.values() and not key.endswith(COUNTERS):
                raise UserError(
                    f"{self.name!r}: {key!r} is {kind}, and weights are {', '.join(_DTYPES)}. If the checkpoint is "
                    "quantised, take the one that it was made from."
                )
        return kinds

    @property
    def dtype(self) -> torch.dtype:
        """That of the weights in its files; float32 if they differ."""
        kinds = {*self.stored.values()} & {*_DTYPES.values()}
        return kinds.pop() if len(kinds) == 1 else torch.float32

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The weights whose names hold a text, by their names in the files, in float32."""
        paths = [self.folder / name for name in weight_files(self.folder)]
        files = [self._unpickled()] if self.is_pickled else map(load_file, paths)
        return {key: value.float() for state in files for key, value in state.items() if part in key}

    def _kinds(self) -> dict[str, Any]:
        """Storage of each weight: a dtype of `_DTYPES`, or another kind's name."""
        kinds: dict[str, Any] = {}
        for name, promised in weight_files(self.folder).items():
            with open_weights(self.folder / name) as file:
                written = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118  (not a dict)
            if promised and promised != written.keys():
                raise UserError(
                    f"{self.name!r}: {INDEX} and {name} don't name the same weights: only one has "
                    f"{quoted(promised ^ written.keys())}. Get the checkpoint anew."
                )
            kinds |= {key: _DTYPES.get(kind, kind) for key, kind in written.items()}
        if kinds:
            return kinds
        if self.is_pickled and self.allow_pickle:
            return {key: value.dtype for key, value in self._unpickled().items()}
        nothing = f"{self.name!r} holds no {WEIGHTS}{f' and no {PICKLE}' * self.allow_pickle}."
        safe = "Give a checkpoint with weights in safetensors form."
        if self.allow_pickle:
            raise UserError(f"{nothing} {safe}")
        raise UserError(
            f"{nothing} {safe} If it has a {PICKLE}, a pickle, in which programs can hide, and you trust it, a "
            f"conversion reads that: {spell('allow_pickle', True)}."
        )

    def _unpickled(self) -> dict[str, Tensor]:
        try:
            tensors = torch.load(self.folder / PICKLE, map_location="cpu", weights_only=True)
            is_whole = all(isinstance(key, str) and isinstance(value, Tensor) for key, value in tensors.items())
        except Exception:  # of a damaged file many kinds; torch's own message advises to run what it holds
            is_whole = False
        if not is_whole:
            raise UserError(
                f"{self.name!r}: {PICKLE} is damaged, or holds more than weights by their names, so it isn't read. "
                "Copy it anew, or find the checkpoint as safetensors."
            )
        return tensors


def open_checkpoint(
    name: str | Path,
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    needs_weights: bool = True,
) -> Checkpoint:
    """Opens a checkpoint, ours or another family's, and refuses what no command may read.

    Args:
        name: folder or Hub name.
        revision: branch, tag or commit on the Hub.
        allow_pickle: weights may come from a .bin file, where there are no others.
        trust_remote_code: the checkpoint's code may be run, to load it.
        needs_weights: False for a graph, or where the configuration decides first whether weights matter.

    Raises:
        UserError: there is none, it is damaged, quantised, an adapter, or asks for what wasn't allowed.
    """
    name = str(name)
    folder = find_folder(name, revision, [*_DESCRIBED, "*.safetensors", *[PICKLE] * allow_pickle])
    checkpoint = Checkpoint(name, folder, read_config(folder, name), allow_pickle, trust_remote_code)
    if needs_weights:
        _ = checkpoint.stored
    return checkpoint


def find_folder(name: str, revision: str | None = None, wanted: Iterable[str] = _DESCRIBED) -> Path:
    """A local folder, or that of a checkpoint on the Hub in the cache, with the files of these patterns.

    Raises:
        UserError: there is neither, or a folder is asked for by a revision.
    """
    path = Path(name)
    if path.is_dir():
        if revision is not None:
            ours = f"is for a name on the Hub, and {name!r} is a folder here. Leave it out."
            raise UserError(ours, parameter="revision", value=revision)
        return path
    if is_local(name):
        raise UserError(f"There is no folder {name!r}. Give the folder of a checkpoint, or its name on the Hub.")
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=[*wanted],
            ignore_patterns=["[!0-9]*/*"],  # the folders of a sentence-transformer's modules begin with a number
        )
    except Exception as error:  # what a missing repository, a failed download or being offline raises differs
        raise UserError(
            f"{name!r} is no folder, and couldn't be had from the Hub: {one_line(error)[:300]} Give the "
            "folder of a checkpoint, or the name of one on the Hub."
        ) from error
    return Path(folder)


def read_config(folder: Path, name: str) -> dict[str, Any]:
    """config.json as it stands.

    Raises:
        UserError: there is none, it isn't a JSON object, has a key twice or a value that makes answers wrong or runs
            what wasn't asked for, or the folder is PEFT's.
    """
    if (folder / "adapter_config.json").is_file():  # which transformers would load beside other weights
        raise UserError(
            f"{name!r} holds a PEFT adapter (adapter_config.json). Merge it into its model first: "
            "merge_and_unload(), save_pretrained."
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{name!r} has no config.json. Give the folder of a checkpoint, or its name on the Hub.")
    raw = read_json(folder / "config.json", name, dict)
    for key, (accepted, reason) in _ACCEPTED.items():
        if key in raw and not fits(raw[key], accepted):
            raise UserError(f"{name!r}: config.json has {key}={_shown(raw[key])}, {reason}")
    _check_unique_labels(raw, name)
    _check_notes(raw, name)
    return raw


def _shown(value: Any) -> str:
    """A value in at most 60 letters."""
    text = json_text(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


_ATTENTION = (
    Literal["eager", "sdpa", "torch"] | None,  # the last is JinaBERT's name of sdpa
    "which may fetch and run a kernel, and wasn't asked for here. Delete that key: eager and sdpa compute the same.",
)
_ACCEPTED: dict[str, tuple[Any, str]] = {
    "architectures": (list[str] | None, "which is no list of names. Copy it anew."),
    "auto_map": (dict, "which doesn't name classes. Delete that key, or copy the checkpoint anew."),
    "return_dict": (Literal[True], "with which a model answers without names. Delete that key, or set it to true."),
    "quantization_config": (
        None,
        "and quantised weights aren't read here. Take the checkpoint that it was made from.",
    ),
    "task_specific_params": (dict | None, "which is no JSON object. Delete that key."),
    "output_attentions": (
        Literal[False] | None,
        "which an answer doesn't need and sdpa can't give. Delete that key.",
    ),
    "output_hidden_states": (bool | None, "which is neither true nor false. Delete that key."),
    "transformers_weights": (None, f"which names other weights than {WEIGHTS}. Delete that key, and call the file so."),
    "configuration_files": (
        None,
        "by which transformers would read another file than this one. Delete that key, and call the file config.json.",
    ),
    "_attn_implementation": _ATTENTION,
    "attn_implementation": _ATTENTION,
}
"""Fields of any config.json that decide how it is read: the types that are accepted, and why others aren't."""

_NOTED: dict[str, Any] = {
    "text_columns": list[str],
    "text_separator": str | None,
    "label_column": str | None,
    "one_hot_columns": list[str],
    "label_delimiter": str | None,
    "labels": list[str],
    "dialect": dict,
    "temperature": float,
    "classes": list,
}
"""What a training notes in config.json (`task_specific_params.hf_posenc`), and the type of each."""


def _check_unique_labels(raw: Mapping[str, Any], name: str) -> None:
    """Refuses two labels of one name: of the two probabilities one would be lost."""
    labels, heads = raw.get("id2label"), map(task_of, raw.get("architectures") or ())
    if not isinstance(labels, dict) or not any(task in LABELLED for task in heads):
        return
    most_common = Counter(map(str, labels.values())).most_common(1)
    if most_common and most_common[0][1] > 1:
        raise UserError(
            f"{name!r}: config.json calls {most_common[0][1]} labels {most_common[0][0]!r}. Give each a name of its "
            "own in id2label."
        )


def _check_notes(raw: Mapping[str, Any], name: str) -> None:
    """Refuses notes of a training that aren't what one writes."""
    notes = (raw.get("task_specific_params") or {}).get(OURS, {})
    if not isinstance(notes, dict):
        wrong = [_shown(notes)]
    else:
        odd = [key for key, hint in _NOTED.items() if key in notes and not fits(notes[key], hint)]
        wrong = [f"{key}={_shown(notes[key])}" for key in odd]
    if wrong:
        raise UserError(
            f"{name!r}: config.json has {wrong[0]} in task_specific_params.{OURS}, which no training writes. Copy the "
            "checkpoint anew, or delete what stands there."
        )


def quoted(names: Iterable[str]) -> str:
    """Names in quotes, the first four and their number where there are more."""
    names = sorted(names)
    return ", ".join(map(repr, names[:4])) + (f", ... ({len(names)} in all)" if len(names) > 4 else "")
