"""Writes files and folders whole or not at all, and computes digests."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WRITING = ".writing"
"""Name of the temporary folder for files that appear together, and the end of those for a single file."""


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


@contextlib.contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A temporary file that replaces `path` when it is written; if writing fails, `path` is unchanged.

    It may be made a folder, if there is none at `path`. Makes the folder above.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", suffix=WRITING, dir=path.parent) as folder:
        yield Path(folder) / path.name
        os.replace(Path(folder) / path.name, path)


def write_json(path: str | Path, value: Any) -> None:
    """Writes a JSON file whole or not at all; NaN and infinity, which JSON lacks, become null."""
    write_text(path, json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n")


def finite(value: Any) -> Any:
    """The value as JSON holds it, with null for NaN and infinity."""
    return json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)


def sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
