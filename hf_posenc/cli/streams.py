"""A command's standard output and standard error: a line that can't be printed ends no training, and shows no token."""

import codecs
import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from hf_posenc.errors import without_tokens

_ESCAPES = "hf_posenc.escapes"
"""How letters are printed that an encoding lacks: as JSON's escapes, so that a line of JSON stays one."""


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_ESCAPES, _escaped)


class OutputLost(Exception):
    """Standard output, which holds a command's answer, can't be written to; `reason` is None where its reader left."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.reason = None if isinstance(error, BrokenPipeError) else getattr(error, "strerror", None) or str(error)


class _Lossy(io.RawIOBase):
    """A raw stream that drops what can't be written, or raises `OutputLost` while it `is_needed`."""

    def __init__(self, raw: Any) -> None:
        self.raw, self.is_needed = raw, False
        self.name = getattr(raw, "name", None)
        self.mode = "wb"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return bool(self.raw.isatty())

    def fileno(self) -> int:
        return int(self.raw.fileno())

    def write(self, data: Any) -> int:
        try:
            if (written := self.raw.write(data)) is None:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return int(written)
        except (OSError, ValueError) as error:  # ValueError: it has been closed
            if self.is_needed:
                raise OutputLost(error) from error
            return len(data)


class _Output(io.TextIOWrapper):
    """A text stream in the place of another."""

    def __init__(self, stream: Any) -> None:
        stream.flush()
        self.lossy = _Lossy(getattr(stream.buffer, "raw", stream.buffer))
        super().__init__(io.BufferedWriter(self.lossy), stream.encoding, _ESCAPES, line_buffering=True)


class _Remarks(_Output):
    """Standard error, to which libraries write, too: without tokens that a server repeated."""

    def write(self, text: str) -> int:
        return super().write(without_tokens(text))


@contextlib.contextmanager
def outputs() -> Iterator[None]:
    """Inside, remarks that can't be printed are dropped; standard output is needed until `output_may_be_lost`.

    Streams that hold no bytes, such as a notebook's, stay as they are.
    """
    given = sys.stdout, sys.stderr
    # A stream that the shell has closed (`>&-`) is None, and what is opened next would take its place.
    out, err = (open(os.devnull) if stream is None else stream for stream in given)  # noqa: SIM115
    if hasattr(out, "buffer"):
        sys.stdout = _Output(out)
        sys.stdout.lossy.is_needed = True
    if hasattr(err, "buffer"):
        sys.stderr = _Remarks(err)
    try:
        yield
    finally:
        output_may_be_lost()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = given


def output_may_be_lost() -> None:
    """From here on standard output tells of the progress alone."""
    if isinstance(sys.stdout, _Output):
        sys.stdout.lossy.is_needed = False
