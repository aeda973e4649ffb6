"""Collects the files of a checkpoint to send, by an allow-list of names; copies them, and loads the model."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers.dynamic_module_utils import get_relative_import_files

from ..checkpoints.files import INDEX, REPORT_NAME, TOKENIZER_FILES, WEIGHTS, read_json, weight_files
from ..checkpoints.loading import load_any
from ..checkpoints.opening import Checkpoint, open_checkpoint
from ..checkpoints.sentence_modules import read_modules
from ..checkpoints.tokenizers import check_ids, load_tokenizer
from ..errors import UserError, spell
from ..files import sha256
from ..isolated_load import first_output
from ..model.configuration_posenc import PosEncConfig
from ..quiet import without_bars
from ..schemes.names import scheme_names
from ..schemes.support import code_files
from ..schemes.support.loaded_code import is_deferred, schemes_of
from ..schemes.support.saved_code import is_built_in
from ..tasks import CLASSES, auto_class

CHECKSUMS = "SHA256SUMS"

TEXT = "Word order is one config value."
"""The text on which tokenizers are compared."""

_SENT = (
    *("config.json", "generation_config.json", "results.json", "confusion_matrix.png", "LICENSE", "NOTICE"),
    *(REPORT_NAME, *TOKENIZER_FILES),
)
"""What is sent if it is there, beside the card, the weights, the code and a sentence-transformer's modules."""


@dataclass
class Upload:
    """The files to send, and the model's outputs here."""

    folder: Path
    """A copy of the files to send, without the README."""
    source: Path
    model: Any
    auto_class: str
    input_ids: torch.Tensor
    output: torch.Tensor
    """The model's output for them."""
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    own_code: bool
    """Whether code isn't this hf_posenc's: that of a custom scheme, or another version's."""
    token_ids: list[int] | None
    """The token ids of `TEXT`; None without a tokenizer."""


@without_bars()
def collect(source: Path, folder: Path, trusted: bool) -> Upload:
    """Copies the files to send into `folder`, and loads the model from there.

    Raises:
        Exception: strangers couldn't load it, or it would send what it shouldn't; an error of whichever library.
    """
    if not source.is_dir():
        raise UserError(f"{str(source)!r} is no folder here. Give that of a checkpoint; `hf download` prints one.")
    opened = open_checkpoint(source, trust_remote_code=trusted, needs_weights=False)
    _check_ours(opened)
    _ = opened.stored  # refuses what isn't to be read
    raw = opened.raw
    config = PosEncConfig.from_pretrained(source, trust_remote_code=trusted)
    if any(is_deferred(config, name) for name in scheme_names(config.position_embedding_type)):
        raise _untrusted(source)
    code, is_ours = _code(source, raw["auto_map"], config)
    own_code = not is_ours or not all(map(is_built_in, schemes_of(config).values()))
    if own_code and not trusted:
        raise _untrusted(source)
    weights = sorted(weight_files(source))
    names = [*weights, *code, *_modules(source)]
    names += [INDEX] if weights != [WEIGHTS] else []
    names += [name for name in _SENT if (source / name).is_file()]
    folder.mkdir()
    for name in names:
        _refuse_link(source, name)
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, folder / name)
    _refuse_link(source, "README.md")
    copy = replace(opened, folder=folder)
    model: Any = load_any(copy)
    auto = auto_class(CLASSES[type(model).__name__])
    length = min(16, model.base_model.position.max_length or 16)
    input_ids = (torch.arange(2 * length) * 7 % (model.config.vocab_size - 1) + 1).view(2, length)
    output = first_output(model, input_ids=input_ids)
    if not output.isfinite().all():
        raise UserError("Its output holds NaN or infinity: its training diverged.")
    token_ids = _tokenize(copy, model.config)
    sums = "".join(f"{sha256(folder / name)}  {name}\n" for name in sorted(names))
    (folder / CHECKSUMS).write_text(sums, encoding="utf-8")
    sent = (*sorted(names), CHECKSUMS)
    left_out = _left_out(source, sent)
    return Upload(folder, source, model, auto, input_ids, output, sent, left_out, own_code, token_ids)


def _left_out(source: Path, sent: tuple[str, ...]) -> tuple[str, ...]:
    """Names of what lies in a folder and isn't sent: files, and folders of which nothing is."""
    folders = {name.partition("/")[0] for name in sent if "/" in name}
    beside = [*source.iterdir(), *(path for name in folders for path in (source / name).iterdir())]
    names = {path.relative_to(source).as_posix() for path in beside}
    return tuple(sorted(names - {"README.md", *sent, *folders}))


def _untrusted(source: Path) -> UserError:
    """The error of code that would have to be run, and wasn't allowed to."""
    return UserError(
        f"{str(source)!r} holds code that isn't this hf_posenc's: a scheme of its author's own, or another version's. "
        f"If you trust it, publish with {spell('trust_remote_code', True)}."
    )


def _modules(source: Path) -> list[str]:
    """The files of a sentence-transformer's modules; refuses modules without which it would answer otherwise."""
    files, notes = read_modules(source, str(source))
    if notes and not files:
        way_out = "Published so, it would answer otherwise. Delete modules.json to publish the encoder alone."
        raise UserError(f"{notes[0]} {way_out}")
    return [*files]


def _check_ours(opened: Checkpoint) -> None:
    """Refuses a model that strangers don't load by the code that it brings."""
    source = opened.folder
    if (kind := opened.raw.get("model_type")) != PosEncConfig.model_type:
        raise UserError(
            f"{str(source)!r} is a {kind} model, not a PosEnc one: it brings no code, and needs none of these checks. "
            "Publish it, or what `hf-posenc export` wrote, as it is, but for the hashes of its training texts: "
            "`hf upload OWNER/NAME FOLDER --exclude _trained_on.npy --exclude _files.json`"
        )
    if not opened.raw.get("auto_map"):
        raise UserError(f"{str(source)!r}: config.json has no auto_map, by which others load it. Save the model anew.")


def _code(source: Path, auto_map: dict[str, Any], config: PosEncConfig) -> tuple[list[str], bool]:
    """The code files of the folder, and whether they are what saving would write here."""
    entry = source / "configuration_posenc.py"
    code = {path.name: path.read_bytes() for path in (entry, *map(Path, get_relative_import_files(entry)))}
    for reference in auto_map.values():
        if f"{str(reference).partition('.')[0]}.py" not in code:
            raise UserError(
                f"{str(source)!r}: auto_map names {reference!r}, which isn't the model's code beside it. Load the "
                "model and save_pretrained it: the code is then copied."
            )
    return sorted(code), code == {name: text.encode() for name, text in code_files(config).items()}


def _refuse_link(source: Path, name: str) -> None:
    """Refuses a link that leaves the folder; links of the Hub's cache to the blobs beside its snapshots may stay."""
    inside = [source.resolve(), source.resolve().parent.parent / "blobs"]
    if not any((source / name).resolve().is_relative_to(folder) for folder in inside):
        raise UserError(f"{str(source / name)!r} is a link out of the folder. Replace it with the file, or remove it.")


def _tokenize(copy: Checkpoint, config: Any) -> list[int] | None:
    described = copy.folder / "tokenizer_config.json"
    if described.is_file() and "auto_map" in read_json(described, copy.name, dict):
        raise UserError("The tokenizer has code of its own, which isn't sent. Give it one of transformers'.")
    tokenizer = load_tokenizer(copy, config)
    if tokenizer is None:
        return None
    check_ids(tokenizer, copy.folder, copy.name, is_saved=True)
    return tokenizer(TEXT)["input_ids"]
