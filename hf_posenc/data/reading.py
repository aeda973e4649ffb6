"""Reads one file as a data set; errors name the file and the line."""

import contextlib
import csv
import glob
import io
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd
from datasets import Dataset, Features, IterableDataset, Value, load_dataset

from ..errors import UserError, disk_error, sentence
from .text_lines import bad_line, open_bytes

READERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}
_DELIMITERS = (",", ";", "\t", "|")
_NAMED = 3
"""How many files a message lists."""


def read_file(
    path: str,
    cache_dir: str | None = None,
    streaming: bool = False,
    *,
    more: Sequence[str] = (),
    delimiter: str | None = None,
) -> Any:
    """One file as a data set: .csv, .tsv, .json, .jsonl (also .gz) or .parquet.

    Args:
        path: the file.
        cache_dir: where datasets keeps what it has read.
        streaming: read nothing yet.
        more: further files of the same kind and with the same columns, as shards have them.
        delimiter: between the columns of a .csv or .tsv. None: found.

    Returns:
        Dataset; with `streaming` an `IterableDataset`, of which nothing has been read.

    Raises:
        UserError: it isn't there, of another kind, empty, or can't be read.
    """
    file = Path(path)
    if file.is_dir():
        raise UserError(f"{path!r} is a folder. Give it as --dataset_name, or name a file in it.")
    if not file.exists():
        raise UserError(f"{path!r} doesn't exist. Check the path; it is read from {str(Path.cwd())!r}.")
    suffixes = [suffix.lower() for suffix in file.suffixes]
    kind = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])
    if "::" in str(file.absolute()):
        raise UserError(f"{path!r}: datasets reads '::' as a path into an archive. Rename the file or its folder.")
    if kind not in READERS:
        raise UserError(f"{path!r} has an unknown suffix. Accepted: {', '.join(READERS)}, the first four also as .gz.")
    with reading(repr(path), what_is_read(kind), [path, *more]):
        for one in (path, *more):
            if _is_empty(Path(one)):
                raise UserError(f"{one!r} is empty. Give a file with at least one example.")
        if READERS[kind] != "csv":
            refuse_delimiter(delimiter, repr(path))
        options = _csv_options(file, kind, delimiter) if READERS[kind] == "csv" else {}
        for other in map(Path, more if options else ()):
            if list(_csv_options(other, kind, delimiter)["features"]) != list(options["features"]):
                raise UserError(f"{str(other)!r} has other columns than {path!r}. Give all shards the same first row.")
        if kind == ".json" and streaming:
            for one in (path, *more):
                _check_lines(Path(one))
        elif kind == ".json":
            options = _json_options(file)
        if streaming:
            options["streaming"] = True
        loaded = load_dataset(
            READERS[kind],
            data_files=[glob.escape(str(Path(one).absolute())) for one in (path, *more)],  # names, not patterns
            split="train",
            cache_dir=cache_dir,
            **options,
        )
        if not streaming:
            loaded.data.validate(full=True)  # datasets doesn't check the UTF-8 of .jsonl and .parquet
    if streaming:
        loaded.info.download_checksums = dict.fromkeys(map(str, (path, *more)))  # see `files_of`
        return loaded
    dataset = cast(Dataset, loaded)
    if len(dataset) == 0:
        raise UserError(f"{path!r} has no rows. Give a file with at least one example.")
    return dataset


def what_is_read(kind: str) -> str:
    """What a file of a kind must be; the end of an error message."""
    return f"It must be a whole {kind} file{'' if kind == '.parquet' else ' of UTF-8 text'}."


def files_of(rows: IterableDataset) -> list[str]:
    """The files that a stream reads; none where it comes from the Hub."""
    return list(rows.info.download_checksums or {})


def _is_empty(file: Path) -> bool:
    with open_bytes(file) as content:
        return not content.read(1)


def refuse_delimiter(delimiter: str | None, what: str) -> None:
    """Raises a UserError if a delimiter is given for data without one."""
    if delimiter is not None:
        raise UserError(f"--delimiter {delimiter!r} is for .csv and .tsv files, {what} is none. Leave it out.")


def _csv_options(file: Path, kind: str, delimiter: str | None) -> dict[str, Any]:
    """Options to read every csv cell as a string: pandas would turn 007 into 7 and the word null into nothing."""
    options: dict[str, Any] = {
        "sep": find_delimiter(file, kind) if delimiter is None else delimiter,
        "keep_default_na": False,
        "na_values": [""],
        "skipinitialspace": True,  # text, label
    }
    head = pd.read_csv(file, nrows=1, dtype=str, **options)
    if not isinstance(head.index, pd.RangeIndex):  # pandas took the first cells as an index
        raise UserError(
            f"{str(file)!r} has {len(head.columns)} columns ({', '.join(map(repr, head.columns))}), its first row has "
            'more cells. Put texts that contain commas in quotes ("a, b"), and name every column.'
        )
    if delimiter is not None and len(head.columns) == 1 and (found := find_delimiter(file, kind)) in head.columns[0]:
        raise UserError(
            f"{str(file)!r} has one column, {head.columns[0]!r}, with --delimiter {delimiter!r}: it is separated by "
            f"{found!r}. Leave --delimiter out."
        )
    return {**options, "features": Features({name: Value("string") for name in head.columns})}


def find_delimiter(file: Path, kind: str) -> str:
    """The delimiter of the first rows of a .csv or .tsv: the kind's own, if it gives several columns, else another."""
    usual = "\t" if kind == ".tsv" else ","
    with open_bytes(file) as content:
        text = io.TextIOWrapper(content, encoding="utf-8-sig", errors="replace", newline="")
        lines = list(itertools.islice(text, 50))
    marks = [usual, *(mark for mark in _DELIMITERS if mark != usual)]
    divided = [mark for mark in marks if len(_first_rows(lines, mark)[0]) > 1]
    even = [mark for mark in divided if len({len(row) for row in _first_rows(lines, mark)}) == 1]
    return next(iter([*even, *divided]), usual)


def _first_rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    with contextlib.suppress(csv.Error):  # an unclosed quote
        found = [row for row in rows if row]
        return (found[:-1] if len(found) > 1 and len(lines) == 50 else found) or [[]]  # the last may be cut
    return [[]]


def _json_options(file: Path) -> dict[str, Any]:
    """Where a .json holds its rows: in a list of objects, one object per line, or in {"data": [...]}."""
    with open_bytes(file) as content:
        try:
            whole = json.load(content)
        except ValueError:
            return {}  # one object per line; or broken, which the reader reports
    if not isinstance(whole, dict):
        return {}
    fields = _lists_of_rows(whole)
    if len(fields) == 1:
        return {"field": fields[0]}
    if fields or all(isinstance(value, list | dict) for value in whole.values()):
        raise UserError(
            f"{str(file)!r} is one object with {', '.join(map(repr, list(whole)[:5]))}, not rows. Write a list of "
            'objects, [{"text": ..., "label": ...}, ...], or one object per line.'
        )
    return {}


def _lists_of_rows(whole: dict[str, Any]) -> list[str]:
    return [name for name, value in whole.items() if value and isinstance(value, list) and isinstance(value[0], dict)]


def _check_lines(file: Path) -> None:
    """Refuses a .json that isn't one object per line, which can't be streamed."""
    with open_bytes(file) as content:
        lines = (line for line in content if line.strip())
        first, more = next(lines, b""), next(lines, None)
    with contextlib.suppress(ValueError):
        row = json.loads(first)
        if isinstance(row, dict) and (more is not None or not _lists_of_rows(row)):
            return
    raise UserError(
        f"--streaming: {str(file)!r} can only be read whole, for it isn't one object per line. Write it as .jsonl, or "
        "leave --streaming out."
    )


def with_files(what: str, files: Sequence[str]) -> str:
    """The name of data with the names of its files."""
    if not files or what == repr(files[0]):
        return what
    return f"{what} ({', '.join(map(repr, files[:_NAMED]))}{', ...' if len(files) > _NAMED else ''})"


@contextlib.contextmanager
def reading(what: str, way_out: str, files: Sequence[str] = ()) -> Iterator[None]:
    """Turns any error of a reader into one line that names the bad line of a file, or else the innermost cause."""
    readers = logging.getLogger("datasets.packaged_modules")  # they log the error that they raise
    before = readers.level
    readers.setLevel(logging.CRITICAL)
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        what = with_files(what, files)
        if isinstance(cause, StopIteration) or "corresponds to no data" in str(cause):
            raise UserError(f"{what} has no rows. Give data with at least one example.") from error
        if disk_error(error) and not isinstance(cause, PermissionError):
            raise UserError(f"{what} was read only in part: {disk_error(error)}. Make room.") from error
        if (wrong := bad_line(files)) is not None:
            raise UserError(wrong) from error
        raise UserError(f"{what} can't be read: {sentence(cause)} {way_out}") from error
    finally:
        readers.setLevel(before)


def read_rows(rows: IterableDataset, most: int | None, split: str) -> Dataset:
    """The first rows of a stream, or all, in memory.

    Raises:
        UserError: it has none, or can't be read.
    """
    with reading(f"The {split} data", "Check the name, the format and the network.", files_of(rows)):
        taken = list(rows if most is None else rows.take(most))
        if not taken:
            raise UserError(
                f"{with_files(f'The {split} data', files_of(rows))} has no rows. Give data with at least one example."
            )
        found = Dataset.from_list(taken, features=rows.features)
    found.info.builder_name = rows.info.builder_name
    return found
