"""What makes an encoder a sentence-transformer: pooling, dense layers, normalisation, prompts, the longest input."""

import json
import re
from pathlib import Path

from ..checkpoint_files import WEIGHTS
from ..errors import UserError
from .sources import read_json

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
_LENGTH = "sentence_bert_config.json"
_CONFIG = "config.json"
_NEEDED = {"Transformer": (), "Pooling": (_CONFIG,), "Normalize": (), "Dense": (_CONFIG, WEIGHTS)}
"""The modules that are files alone, and the files without which each can't be loaded."""


def read_modules(folder: Path, source: str, longest: int | None) -> tuple[dict[str, bytes], list[str]]:
    """The files beside the encoder's own that sentence-transformers reads, by their place in the folder.

    They are all kept or none: without one of its modules it would be another sentence-transformer.

    Args:
        folder: of the checkpoint.
        source: what the user called it.
        longest: how long inputs may be. None: as long as before.

    Returns:
        The files, none if it is no sentence-transformer, and a note for the report if it is one.

    Raises:
        UserError: a file can't be read.
    """
    if not (folder / MODULES).is_file():
        return {}, []
    files = {MODULES: (folder / MODULES).read_bytes()}
    kinds = []
    modules = read_json(folder / MODULES, source, list)
    for number, module in enumerate(modules):
        try:
            kind, place = str(module["type"]), str(module["path"])
        except (TypeError, KeyError) as error:
            raise UserError(f"{source!r}: {MODULES} lacks type and path of module {number}. Copy it anew.") from error
        if reason := _obstacle(folder / place, kind, place, number):
            lost = f"Not a sentence-transformer any more: its module {place!r} ({kind}) isn't kept, since {reason}."
            return {}, [f"{lost} SentenceTransformer(OUT) takes the mean of the token vectors instead."]
        kinds.append(kind.rpartition(".")[2])
        if number:
            files |= {f"{place}/{name}": (folder / place / name).read_bytes() for name in _present(folder / place)}
    if (folder / PROMPTS).is_file():
        files[PROMPTS] = (folder / PROMPTS).read_bytes()
    for path in sorted(folder.glob("sentence_*_config.json"))[:1]:  # in older ones the name holds the encoder's
        values = read_json(path, source, dict)
        if longest is not None and "max_seq_length" in values:
            values["max_seq_length"] = longest
        files[_LENGTH] = json.dumps(values, indent=2).encode()
    return files, [f"It stays a sentence-transformer: {', '.join(kinds)}."]


def write_modules(folder: Path, files: dict[str, bytes]) -> None:
    """Writes what `read_modules` returned beside the converted encoder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def is_module(path: Path) -> bool:
    """Whether it is a file or a folder that `write_modules` writes."""
    is_folder = path.is_dir() and re.fullmatch(r"\d+_\w+", path.name) and path.name.rpartition("_")[2] in _NEEDED
    return path.name in (MODULES, PROMPTS) or bool(is_folder)


def _obstacle(path: Path, kind: str, place: str, number: int) -> str | None:
    """Why a module can't be kept, or None."""
    name = kind.rpartition(".")[2]
    if not kind.startswith("sentence_transformers.") or name not in _NEEDED:
        return f"only {', '.join(_NEEDED)} are"
    if (name == "Transformer") != (number == 0) or not re.fullmatch(r"\w+" if number else "", place):
        return "it isn't where sentence-transformers puts it"
    missing = sorted(set(_NEEDED[name]) - set(_present(path)))
    return f"its folder lacks {' and '.join(missing)}" if missing else None


def _present(path: Path) -> list[str]:
    return [name for name in (_CONFIG, WEIGHTS) if (path / name).is_file()]
