"""Files of a sentence-transformers model: modules behind it, prompts, the longest input, an activation."""

import re
from pathlib import Path

from ..errors import UserError
from ..files import json_text
from .files import WEIGHTS, read_json

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
_LENGTH = "sentence_bert_config.json"
_CONFIG = "config.json"
_POOLING = ("Pooling", "SpladePooling", "MultiVectorMask", "HierarchicalTokenPooling", "Dropout")
_NEEDED = {
    **dict.fromkeys(("Transformer", "MLMTransformer", "Normalize"), ()),
    **dict.fromkeys(("Dense", "LayerNorm"), (_CONFIG, WEIGHTS)),
    **dict.fromkeys(_POOLING, (_CONFIG,)),
}
"""The modules that are files alone, and the files without which each can't be loaded."""
_FIRST = {"Transformer": "feature-extraction", "MLMTransformer": "fill-mask"}
"""The modules that are the encoder, and the task that it has where nothing says another."""
_LOST = "Not a sentence-transformer any more, so that sentence-transformers puts its default modules behind it:"
ACTIVATION = ("sentence_transformers", "sbert_ce_default_activation_function")
"""Where config.json keeps the activation of a cross-encoder's score, today and before sentence-transformers 4."""


def read_modules(
    folder: Path, source: str, longest: int | None = None, task: str | None = None
) -> tuple[dict[str, bytes], list[str]]:
    """The files beside the model's own that sentence-transformers reads, by their place in the folder.

    They are all kept or none: without one of its modules it would be another model.

    Args:
        folder: of the checkpoint.
        source: what the user called it.
        longest: how long inputs may be. None: as long as before.
        task: of the model that they will lie beside. None: it stays.

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
            return {}, [f"{_LOST} its module {place!r} ({kind}) isn't kept, since {reason}."]
        kinds.append(kind.rpartition(".")[2])
        if number:
            files |= {f"{place}/{name}": (folder / place / name).read_bytes() for name in _present(folder / place)}
    made_for = _FIRST[kinds[0]] if kinds else None
    if (folder / PROMPTS).is_file():
        files[PROMPTS] = (folder / PROMPTS).read_bytes()
    for path in sorted(folder.glob("sentence_*_config.json"))[:1]:  # in older ones the name holds the encoder's
        values = read_json(path, source, dict)
        if (expansion := values.get("query_expansion")) and not expansion.get("attend"):  # ColBERT's
            reason = "its queries end in tokens that nobody attends to, at which this encoder has no states"
            return {}, [f"{_LOST} {reason} (query_expansion with attend=False)."]
        if longest is not None and "max_seq_length" in values:
            values["max_seq_length"] = longest
        files[_LENGTH] = json_text(values, 2).encode()
        made_for = values.get("transformer_task", made_for)
    if task not in (None, str(made_for).replace("sequence-", "text-")):  # the Hub's name of the task
        return {}, [f"{_LOST} its modules are made for {made_for}, and this is for {task}."]
    return files, [f"It stays a sentence-transformer: {', '.join(kinds)}."]


def write_modules(folder: Path, files: dict[str, bytes]) -> None:
    """Writes files by their names, such as those that `read_modules` returned, beside an encoder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def is_module(path: Path) -> bool:
    """True for a file or a folder that `write_modules` writes."""
    is_folder = path.is_dir() and re.fullmatch(r"\d+_\w+", path.name) and path.name.rpartition("_")[2] in _NEEDED
    return path.name in (MODULES, PROMPTS) or bool(is_folder)


def _obstacle(path: Path, kind: str, place: str, number: int) -> str | None:
    """Why a module can't be kept, or None."""
    name = kind.rpartition(".")[2]
    if not kind.startswith("sentence_transformers.") or name not in _NEEDED:
        return f"only {', '.join(_NEEDED)} are"
    if (name in _FIRST) != (number == 0) or not re.fullmatch(r"\w+" if number else "", place):
        return "it isn't where sentence-transformers puts it"
    missing = sorted(set(_NEEDED[name]) - set(_present(path)))
    return f"its folder lacks {' and '.join(missing)}" if missing else None


def _present(path: Path) -> list[str]:
    return [name for name in (_CONFIG, WEIGHTS) if (path / name).is_file()]
