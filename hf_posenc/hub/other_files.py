"""Other files of a repository: stale ones, which publishing removes, and foreign ones that a loader would read."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

_HARMLESS = re.compile(
    r"\.gitattributes|\.gitignore|CITATION\.cff|(LICENSE|NOTICE|requirements)(\.txt)?"
    r"|(?!(?i:vocab|merges))[^/\\\n]*\.txt|[^/\\\n]*\.(md|rst|png|jpe?g|gif|svg|webp|pdf|csv|tsv|jsonl|log|ipynb)"
    r"|\w*results\.json|trainer_state\.json|conversion\.json"
)
"""Files that no loader reads. Any other file may be a tokenizer, an adapter or other weights."""
_READ_FOLDERS = ("additional_chat_templates", "chat_templates", "custom_generate")
_STALE = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")
"""Weights of an earlier upload, which would be loaded instead of or beside the new ones."""


def stale_files(present: Iterable[str], sent: Iterable[str], checksums: str) -> list[str]:
    """Files of earlier uploads that this one replaces: weights, and all that an earlier `publish` sent.

    Args:
        present: the files of the repository.
        sent: those that are published now.
        checksums: the SHA256SUMS that are there, or nothing.
    """
    listed = {line.partition("  ")[2] for line in checksums.splitlines()}
    earlier = listed if "configuration_posenc.py" in listed else set()
    return sorted(name for name in {*present} - {*sent, "README.md"} if name in earlier or _STALE.fullmatch(name))


def unknown_files(present: Iterable[str], sent: Iterable[str]) -> list[str]:
    """Files of other origin that would be loaded or run with the repository.

    Names are compared as they are: on a disk that ignores case, `Config.json` is `config.json`.
    """
    return sorted(name for name in {*present} - {*sent, "README.md"} if not _is_harmless(name))


def _is_harmless(name: str) -> bool:
    folder, slash, _ = name.partition("/")
    if not slash:
        return _HARMLESS.fullmatch(name) is not None
    return folder.lower() not in _READ_FOLDERS and PurePosixPath(name).suffix.lower() != ".py" and "\\" not in name
