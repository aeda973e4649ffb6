"""Writes files and folders whole or not at all, and computes digests."""

import base64
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

WRITING = ".writing"
"""Name of the temporary folder for files that appear together, and the end of those for a single file."""

_Value = TypeVar("_Value")


def expanded(path: _Value) -> _Value:
    """A path with the home folder for `~`, which a shell leaves behind `=`; a value of another type as it is."""
    return type(path)(os.path.expanduser(cast(Any, path))) if isinstance(path, str | Path) else path


def last_name(path: str) -> str:
    """The last name of a path on this machine, as records that others may read keep it; a name on the Hub as it is."""
    is_here = path.startswith(("/", "~", "./", "../")) or Path(path).exists()
    return os.path.basename(os.path.abspath(path)) if is_here else path


def without_folders(value: Any, *, keep_relative: bool = False) -> Any:
    """A path, or a list of paths, as a record has it: by its last name.

    Args:
        value: of an option that may be a path, a name on the Hub or None.
        keep_relative: leave paths that aren't absolute, for a record that is read again where it was written.
    """
    if isinstance(value, list | tuple):
        return type(value)(without_folders(item, keep_relative=keep_relative) for item in value)
    if not isinstance(value, str) or len(Path(value).parts) < 2:
        return value
    return value if keep_relative and not Path(value).is_absolute() else last_name(value)


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


@contextlib.contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A temporary file that replaces `path` when it is written; if writing fails, `path` is unchanged.

    It may be made a folder, if there is none at `path`. Makes the folder above.
    """
    name = Path(path).name
    target = Path(os.path.realpath(path))  # a link stays one
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name[:40]}-", suffix=WRITING, dir=target.parent) as folder:
        yield Path(folder) / name
        os.replace(Path(folder) / name, target)


def write_json(path: str | Path, value: Any) -> None:
    """Writes a JSON file whole or not at all; see `json_text`."""
    write_text(path, json_text(value, indent=2) + "\n")


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON, with null for NaN and infinity, which JSON lacks; what it has no form for is a string.

    Bytes are written in Base64.
    """
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, default=_as_string, allow_nan=False)
    except ValueError:  # NaN, or an object that holds itself, which is refused once more
        return json.dumps(finite(value), indent=indent, ensure_ascii=False)


def finite(value: Any) -> Any:
    """The value as JSON holds it, with null for NaN and infinity."""
    return json.loads(json.dumps(value, default=_as_string), parse_constant=lambda _: None)


def _as_string(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
