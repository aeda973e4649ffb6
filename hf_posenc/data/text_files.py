"""Text files line by line: unpacked, decoded, with the number of a line that can't be read."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from ..errors import UserError, sentence

UTF8 = "utf-8"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""How its files begin."""


def open_bytes(path: Path) -> BinaryIO:
    """A file, unpacked where it is a .gz."""
    return cast(BinaryIO, gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb"))


@contextlib.contextmanager
def readable(path: Path, kind: str = "", errors: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns an error of the disk, of a packed file, or one of `errors` into one that names the file."""
    unreadable: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, *errors)
    try:
        yield
    except PermissionError as error:
        raise UserError(f"{str(path)!r} can't be read: {error.strerror}. Change its permissions.") from error
    except unreadable as error:
        raise UserError(f"{str(path)!r} can't be read: {sentence(error)} It must be a whole {kind}file.") from error


def read_lines(path: Path, encoding: str | None = None) -> Iterator[str]:
    r"""The lines of a file with their ends (\n, \r or \r\n), without a byte order mark.

    Raises:
        UserError: one can't be decoded; the message has its number and a way out.
    """
    name = (encoding or UTF8).replace("utf8", UTF8)
    with readable(path), open_bytes(path) as content:
        try:
            yield from io.TextIOWrapper(content, "utf-8-sig" if name == UTF8 else name, newline="")
        except UnicodeError as error:
            raise _not_decoded(path, encoding, error) from error


def _not_decoded(path: Path, encoding: str | None, error: UnicodeError) -> UserError:
    """Names the line: the decoder, which reads ahead, knows only its block."""
    number, way_out = 1, "Convert it, or name its encoding: --encoding latin-1 (cp1252 on Windows)."
    with readable(path), open_bytes(path) as content:
        for number, line in enumerate(content, start=1):
            if number == 1 and encoding is None and line.startswith(_UTF16):
                way_out = "Name its encoding: --encoding utf-16."
            try:
                line.decode(encoding or UTF8)
            except UnicodeError as of_line:
                error = of_line
                break
    return UserError(f"{path}, line {number} isn't {encoding or 'UTF-8'} text: {sentence(error)} {way_out}")


def check_encoding(name: str | None) -> None:
    """Raises a UserError if Python knows no such encoding of text."""
    if name is None:
        return
    try:
        "a".encode(name).decode(name)
    except (LookupError, UnicodeError, AttributeError, TypeError) as error:
        raise UserError(f"--encoding {name!r} is unknown. Give utf-8, latin-1, cp1252, utf-16, ...") from error


def is_empty(path: Path) -> bool:
    """Whether a file holds no byte."""
    with readable(path), open_bytes(path) as content:
        return not content.read(1)
