"""Reads files: each row once and in order, or an error that names the line. One reader for every command."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features

from ..errors import UserError, sentence
from ..options import refuse_given
from .delimited import open_delimited
from .options import DataArguments
from .table import Row, Stream, Table, Tally, classes_of, concatenate
from .text_files import is_empty, read_lines, readable

KINDS = (".csv", ".tsv", ".json", ".jsonl", ".txt", ".parquet")
"""The suffixes that are read; all but .parquet also as .gz."""


def open_file(path: str | Path, options: DataArguments | None = None) -> Stream:
    """A file that is there and of a kind that is read. A .csv or .tsv is read through once.

    Raises:
        UserError: it isn't there, of another kind, empty, or can't be read.
    """
    options, file = options or DataArguments(), Path(path)
    if file.is_dir():
        raise UserError(f"{str(path)!r} is a folder. Give it as --dataset-name, or name a file in it.")
    if not file.exists():
        raise UserError(f"{str(path)!r} doesn't exist. Check the path; it is read from {str(Path.cwd())!r}.")
    kind = kind_of(file)
    if kind not in KINDS:
        raise UserError(f"{str(path)!r} has an unknown suffix. Accepted: {', '.join(KINDS)}, all but the last as .gz.")
    if is_empty(file):
        raise UserError(f"{str(path)!r} is empty. Give a file with at least one example.")
    if kind in (".csv", ".tsv"):
        return open_delimited(file, kind, options)
    why = f"is for .csv and .tsv files, {str(path)!r} is none"
    refuse_given(options, ("delimiter", "quoting"), why)
    if kind == ".parquet":
        return _stream_of_parquet(file)

    def read(tally: Tally) -> Iterator[Row]:
        for row in _READERS[kind](file, options.encoding, tally):
            tally.rows += 1
            yield row

    return Stream(str(path), read, "row" if kind == ".json" else "line")


def kind_of(path: Path) -> str:
    """The suffix that says how a file is read: of a.csv.gz `.csv`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def open_files(paths: Sequence[str | Path], options: DataArguments | None = None) -> Callable[[], Table]:
    """Opens a file, or the shards of one; returns what reads all rows as one table.

    Raises:
        UserError: see `open_file`; or a shard has other columns, or other classes, than the first. An object of JSON
            may lack a key.
    """
    first, *others = streams = [open_file(path, options) for path in paths]
    if not others:
        return first.table
    for stream in others:
        if stream.names != first.names or stream.classes != first.classes:
            raise UserError(
                f"{stream.source!r} has other columns than {first.source!r}. Give all shards the same columns, in one "
                "order, and the same classes."
            )
    source = ", ".join(stream.source for stream in streams[:3]) + ", ..." * (len(streams) > 3)
    return lambda: concatenate([stream.table() for stream in streams], source)


def read_table(path: str | Path, options: DataArguments | None = None) -> Table:
    """All rows of a file in memory.

    Raises:
        UserError: see `open_file`; or there is no row.
    """
    return open_file(path, options).table()


# ---- JSON -----------------------------------------------------------------------------------------------------------


def _read_json_lines(path: Path, encoding: str | None, tally: Tally) -> Iterator[Row]:
    for number, line in nonempty_lines(read_lines(path, encoding), tally):
        try:
            yield Row(number, parse_object(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number} {error}") from error


def parse_object(line: str) -> dict[str, Any]:
    """The JSON object of a line.

    Raises:
        ValueError: it holds something else; the message follows the name of the line.
    """
    try:
        value = _parse(line)
    except ValueError as error:
        text = error.msg + "." if isinstance(error, json.JSONDecodeError) else sentence(error)  # the line is named
        raise ValueError(f"is no JSON: {text} Write one object per line.") from error
    if not isinstance(value, dict):
        way_out = " on a line of its own, or call the file .json" * isinstance(value, list)
        raise ValueError(f'is no object: {line.strip():.60}. Write {{"text": "..."}}{way_out}.')
    return value


def _parse(text: str) -> Any:
    """A JSON value; refuses what the parser would drop or a tokenizer couldn't take.

    Raises:
        ValueError: the text is no JSON, too deep, names a key twice, or holds half a character.
    """
    try:
        value = json.loads(text, object_pairs_hook=_keep_all)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deep.") from error
    return value


def _keep_all(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it names {max(names, key=names.count)!r} twice.")
    return row


def _read_json(path: Path, encoding: str | None, tally: Tally) -> Iterator[Row]:
    """A list of objects."""
    text = "".join(read_lines(path, encoding))
    try:
        whole = _parse(text)
    except ValueError as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        way_out = "It must be one list of objects; call a file with an object per line .jsonl."
        raise UserError(f"{path}{where} is no JSON: {sentence(error)} {way_out}") from error
    if not isinstance(whole, list):
        raise UserError(f'{str(path)!r} holds {whole!r:.60}, no rows. Write a list of objects, [{{"text": ...}}, ...].')
    for number, row in enumerate(whole, start=1):
        if not isinstance(row, dict):
            raise UserError(f'{path}, row {number} is no object: {row!r:.60}. Write {{"text": "...", "label": "..."}}.')
        yield Row(number, row)


# ---- plain text -----------------------------------------------------------------------------------------------------


def nonempty_lines(lines: Iterable[str], tally: Tally) -> Iterator[tuple[int, str]]:
    """The lines that aren't empty, with their numbers; counts all."""
    for number, line in enumerate(lines, start=1):
        tally.lines = number
        if line.strip():
            yield number, line
        else:
            tally.blank += 1


def _read_text(path: Path, encoding: str | None, tally: Tally) -> Iterator[Row]:
    """One text per line."""
    for number, line in nonempty_lines(read_lines(path, encoding), tally):
        yield Row(number, {"text": line.rstrip("\r\n")})


_READERS: dict[str, Callable[[Path, str | None, Tally], Iterator[Row]]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".txt": _read_text,
}


# ---- Parquet --------------------------------------------------------------------------------------------------------


_PARQUET = (".parquet ", (pa.ArrowException, ValueError, KeyError))
"""What it is called, and what reading it may raise besides errors of the disk."""


def _stream_of_parquet(path: Path) -> Stream:
    def read(tally: Tally) -> Iterator[Row]:
        with readable(path, *_PARQUET):
            for batch in pq.ParquetFile(path).iter_batches():
                batch.validate(full=True)
                for cells in batch.to_pylist():
                    tally.rows += 1
                    yield Row(tally.rows, cells)

    def load() -> Table:
        with readable(path, *_PARQUET):
            dataset = Dataset(pq.read_table(path))
            dataset.data.validate(full=True)
        return Table.of_dataset(str(path), dataset)

    with readable(path, *_PARQUET):
        schema = pq.read_schema(path)
        is_of_datasets = b"huggingface" in (schema.metadata or {})
        classes = classes_of(Features.from_arrow_schema(schema)) if is_of_datasets else {}
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise UserError(f"{str(path)!r} names the column {twice[0]!r} twice. Give each a name of its own.")
    return Stream(str(path), read, classes=classes, names=tuple(schema.names), load=load)
