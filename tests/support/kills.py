"""What a kill leaves: copies of a folder, taken before each file operation below it."""

import contextlib
import hashlib
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")
_look: Callable[[], None] | None = None
_root = ""


def _below(path: Any, dir_fd: Any = None) -> bool:
    """Whether an operation's path lies in the watched folder; it may be relative to an open folder."""
    if isinstance(path, int):
        return False
    name = os.fsdecode(path)
    if isinstance(dir_fd, int) and dir_fd >= 0:
        name = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
    return os.path.abspath(name).startswith(_root)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    global _look
    look = _look
    if look is None or (event != "open" and event not in _CHANGES):
        return
    if event == "open":
        is_change = bool((args[2] or 0) & _WRITES) and _below(args[0])
    elif event == "os.rename":
        is_change = _below(args[0], args[2]) or _below(args[1], args[3])
    else:
        is_change = _below(args[0], args[-1] if event != "os.truncate" else None)
    if is_change:
        _look = None  # copying is no operation of the command
        try:
            look()
        finally:
            _look = look


def _state(folder: Path) -> str:
    """Tells one content of a folder from others."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)} {path.is_dir()}".encode())
        if path.is_file() and not path.name.startswith(".posenc.lock"):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@contextlib.contextmanager
def watched(folder: Path, look: Callable[[], None]) -> Iterator[None]:
    """Calls a function before each file operation below a folder."""
    global _look, _root
    if not hasattr(sys, "_posenc_kills"):  # a hook can't be taken out again
        sys.addaudithook(_hook)
        sys._posenc_kills = True  # type: ignore[attr-defined]
    _look, _root = look, f"{os.path.abspath(folder)}{os.sep}"
    try:
        yield
    finally:
        _look = None


@contextlib.contextmanager
def copied_before_each_operation(folder: Path, copies: Path, every: int = 1) -> Iterator[list[Path]]:
    """Fills a list with the distinct contents of a folder before each file operation in it, in order.

    What Rust and C++ write isn't seen: see `damaged`. For a quick look, `every` so many operations are enough.
    """
    seen: set[str] = set()
    taken: list[Path] = []

    number = itertools.count()

    def look() -> None:
        if next(number) % every == 0 and (state := _state(folder)) not in seen:
            seen.add(state)
            taken.append(Path(shutil.copytree(folder, copies / f"{len(taken):03}", symlinks=True)))

    with watched(folder, look):
        yield taken


_UNSEEN = (".safetensors", ".pt", ".pth", "tokenizer.json")


def damaged(copies: list[Path]) -> list[Path]:
    """Further copies, in which a file that Rust or C++ had written since the copy before is absent, empty, or half."""
    more = []
    for before, copy in itertools.pairwise(copies):
        for path in sorted(copy.rglob("*")):
            name, content = path.relative_to(copy), path.read_bytes() if path.is_file() else b""
            if not path.name.endswith(_UNSEEN) or (
                (before / name).is_file() and (before / name).read_bytes() == content
            ):
                continue
            elsewhere = [
                earlier for earlier in before.rglob(path.name) if not (copy / earlier.relative_to(before)).exists()
            ]
            if any(earlier.read_bytes() == content for earlier in elsewhere):
                continue  # it was moved
            for number, size in enumerate((None, 0, path.stat().st_size // 2)):
                more.append(Path(shutil.copytree(copy, copy.with_name(f"{copy.name}-{path.name}-{number}"))))
                if size is None:
                    (more[-1] / name).unlink()
                else:
                    os.truncate(more[-1] / name, size)
    return more
