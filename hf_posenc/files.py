"""Writes files and folders whole or not at all, and computes digests."""

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

WRITING = ".writing"
"""Name of the temporary folder for files that appear together."""
REPLACED = ".replaced-"
"""Prefix of the folder that holds replaced files until all new ones are in place."""
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
"""Name of the Trainer's checkpoint folders, with the step."""


_Value = TypeVar("_Value")


def expanded(path: _Value) -> _Value:
    """A path with the home folder for `~`, which a shell leaves in `--output=~/x`; a value of another type as it is."""
    return type(path)(os.path.expanduser(cast(Any, path))) if isinstance(path, str | Path) else path


def last_name(path: str) -> str:
    """The last name of a path on this machine, as records that others may read keep it; a name on the Hub as it is."""
    is_here = path.startswith(("/", "~", "./", "../")) or Path(path).exists()
    return os.path.basename(os.path.abspath(path)) if is_here else path


def without_folders(value: Any, *, keep_relative: bool = False) -> Any:
    """A record's value with last names in the place of paths, in dictionaries and lists too.

    Args:
        value: of an option, which may be a path or anything else.
        keep_relative: leave paths that aren't absolute, for a record that is read again where it was written.
    """
    if isinstance(value, Mapping):
        return {name: without_folders(item, keep_relative=keep_relative) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_folders(item, keep_relative=keep_relative) for item in value)
    if not isinstance(value, str) or len(Path(value).parts) < 2:
        return value
    return value if keep_relative and not Path(value).is_absolute() else last_name(value)


@contextlib.contextmanager
def replaced_together(output_dir: str | Path, main_process: bool = True, earlier: Iterable[str] = ()) -> Iterator[Path]:
    """A temporary folder whose files move into `output_dir` when all are written; see `swap_in`.

    If writing fails, `output_dir` is unchanged. All of several processes enter; only the main one creates, moves and
    removes files.

    Args:
        output_dir: the target, made if it doesn't exist.
        main_process: whether this is the main process.
        earlier: further files in `output_dir` that are replaced.
    """
    folder = Path(output_dir)
    temporary, is_new = folder / WRITING, not folder.exists()
    if main_process:
        shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
        temporary.mkdir(parents=True)
    try:
        yield temporary
        if main_process:
            swap_in(temporary, folder, earlier)
    finally:
        if main_process:
            shutil.rmtree(temporary, ignore_errors=True)
            if is_new and not any(folder.iterdir()):
                folder.rmdir()


def swap_in(new: Path, folder: Path, earlier: Iterable[str]) -> None:
    """Moves the files of `new` into `folder`, replacing those of the same names and those in `earlier`.

    If that fails, `folder` is unchanged. The old `config.json` is removed first and the new one moved last: a folder
    without it isn't a model, so a killed process leaves none that is mixed, and the old files in `.replaced-...`.
    """
    arriving = list(_arriving(new, folder))
    leaving = {*earlier, *arriving}
    old = Path(tempfile.mkdtemp(prefix=REPLACED, dir=folder))
    with contextlib.ExitStack() as undo:
        undo.callback(old.rmdir)
        for name in sorted(leaving, key=lambda name: (name != "config.json", name)):
            if (folder / name).exists():
                _move(folder / name, old / name, undo)
        for name in sorted(arriving, key=lambda name: (name == "config.json", name)):
            _move(new / name, folder / name, undo)
        undo.pop_all()
    shutil.rmtree(old, ignore_errors=True)


def _arriving(new: Path, folder: Path) -> Iterator[str]:
    """Names in `new`; a folder is merged into one of the same name, unless it is a checkpoint."""
    for path in new.iterdir():
        present = folder / path.name
        if path.is_dir() and present.is_dir() and not CHECKPOINT.fullmatch(path.name):
            yield from (f"{path.name}/{name}" for name in _arriving(path, present))
        else:
            yield path.name


def _move(source: Path, target: Path, undo: contextlib.ExitStack) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)
    undo.callback(os.replace, target, source)


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


@contextlib.contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A temporary file that replaces `path` when it is written; if writing fails, `path` is unchanged.

    Makes the folder.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", suffix=WRITING, dir=path.parent) as folder:
        yield Path(folder) / path.name
        os.replace(Path(folder) / path.name, path)


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
