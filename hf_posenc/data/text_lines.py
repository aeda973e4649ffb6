"""Finds the bad line of a text file, for readers that don't name it."""

import gzip
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import sentence

_TEXT = (".csv", ".tsv", ".json", ".jsonl", ".txt", "")


def open_bytes(path: Path) -> Any:
    """A file, unpacked where it is a .gz."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


def parse_object(line: str) -> dict[str, Any]:
    """The JSON object of a line.

    Raises:
        ValueError: it holds something else; the message follows the name of the line.
    """
    try:
        row = json.loads(line)
        if "\\ud" in line.lower():
            json.dumps(row, ensure_ascii=False).encode()  # lone surrogates, which no tokenizer takes
    except (ValueError, RecursionError) as error:
        said = error.msg + "." if isinstance(error, json.JSONDecodeError) else sentence(error)  # the line is named
        raise ValueError(f"is no JSON: {said} Write one object per line.") from error
    if not isinstance(row, dict):
        raise ValueError(f'is no object: {line.strip():.60}. Write {{"text": "..."}}.')
    return row


def bad_line(files: Iterable[str | Path]) -> str | None:
    """What is wrong with the first line that isn't UTF-8 or, in a .jsonl, no JSON object; None if there is none.

    Skips files that don't exist, aren't text, or can't be read to their end.
    """
    for file in map(Path, files):
        suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() != ".gz"]
        kind = suffixes[-1] if suffixes else ""
        if kind not in _TEXT or not file.is_file():
            continue
        try:
            with open_bytes(file) as content:
                for number, line in enumerate(content, start=1):
                    if (wrong := _what_is_wrong(line, kind)) is not None:
                        return f"{file}, line {number} {wrong}"
        except (OSError, EOFError, zlib.error):
            continue
    return None


def _what_is_wrong(line: bytes, kind: str) -> str | None:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"isn't UTF-8 text: {sentence(error)} Convert the file to UTF-8."
    if kind != ".jsonl" or not text.strip():
        return None
    try:
        parse_object(text)
    except ValueError as error:
        return str(error)
    return None
