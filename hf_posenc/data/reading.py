"""Reads a file into a `datasets.Dataset`: each row once and in order, or an error that names the line.

Text files are read by Python's `csv` and `json` and kept in memory, never taken from a cache. A column `__line__` says
where each row stands: its first line, or in a .json or .parquet file its number.
"""

import codecs
import contextlib
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, DatasetInfo, List

from ..errors import UserError, sentence
from ..options import Options, refuse_given
from .delimited import DelimitedFile

LINE = "__line__"
"""The column that says where a row stands."""
KINDS = ("csv", "tsv", "json", "jsonl", "txt", "parquet")
"""The suffixes that are read; all but parquet also as .gz."""
_UTF8 = "utf-8"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""How its files begin."""


def read_file(path: str | Path, options: Options | None = None) -> Dataset:
    """All rows of a file, or of standard input for `-`; its suffix says what it is, unless `--format` does.

    Raises:
        UserError: it isn't there, of another kind, has no row, can't be read, or a line could be read in two ways.
    """
    options, kind = options or Options(), _checked_kind(path, options or Options())
    if kind in ("csv", "tsv"):
        file = DelimitedFile(str(path), kind, options)
        file.read(_lines(path, options.encoding))
        columns: dict[str, Any] = dict(file.columns)
        return _dataset(path, "csv", columns, file.places, file.lines, file.joined, file.blank)
    refuse_given(options, ("delimiter", "quoting"), f"is for .csv and .tsv files, {str(path)!r} is none")
    if kind == "parquet":
        refuse_given(options, ("encoding",), f"is for files of text, {str(path)!r} is none")
        return _read_parquet(Path(path))
    if kind == "json":
        rows = _list_of_objects(path, options.encoding)
        return _dataset(path, "json", _by_column(rows), range(1, len(rows) + 1))
    numbered = list(enumerate(_lines(path, options.encoding), start=1))
    places = [number for number, line in numbered if line.strip()]
    if kind == "txt":
        columns = {"text": [line.rstrip("\r\n") for _, line in numbered if line.strip()]}
    else:
        columns = _by_column([_object_of(path, number, line) for number, line in numbered if line.strip()])
    return _dataset(path, kind, columns, places, len(numbered), 0, len(numbered) - len(places))


def kind_of(path: Path) -> str:
    """The suffix that says how a file is read, without its dot: of a.csv.gz `csv`."""
    suffixes = [suffix.lower().lstrip(".") for suffix in path.suffixes]
    return suffixes[-2] if suffixes[-1:] == ["gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def where(table: Dataset, row: int) -> str:
    """Where a row stands, in words: `line 5`."""
    return f"{'line' if table.info.builder_name in ('csv', 'jsonl', 'txt') else 'row'} {table[LINE][row]}"


def names_of(table: Dataset) -> list[str]:
    """The columns of the file."""
    return [name for name in table.column_names if name != LINE]


def classes_of(table: Dataset, column: str) -> tuple[str, ...] | None:
    """The names that a data set declares for the numbers of a column, or of the lists in it."""
    feature = table.features.get(column)
    inner = feature.feature if isinstance(feature, List) else feature
    return tuple(inner.names) if isinstance(inner, ClassLabel) else None


def as_table(dataset: Dataset, source: str) -> Dataset:
    """A data set of the library datasets, or rows in memory, with numbered rows."""
    if not len(dataset):
        raise UserError(f"{source!r} has no rows. Give data with at least one example.")
    if LINE in dataset.column_names:
        raise UserError(f"{source} has a column {LINE!r}, which is where rows are numbered. Rename it.")
    dataset = dataset.add_column(LINE, cast(Any, list(range(1, len(dataset) + 1))))
    dataset.info.description, dataset.info.dataset_name = counted(len(dataset), "row"), source
    dataset.info.builder_name = "datasets"
    return dataset


def counted(count: int, what: str) -> str:
    """A number of things: `1 row`, `2,000 rows`."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def _checked_kind(path: str | Path, options: Options) -> str:
    if path == "-":
        if options.format is None:
            raise UserError("Standard input (-) has no suffix. Say what it is: --format txt, csv, jsonl, ...")
        return options.format
    file = Path(path)
    if file.is_dir():
        raise UserError(f"{str(path)!r} is a folder. Give it as --data, or name a file in it.")
    if not file.exists():
        raise UserError(f"{str(path)!r} doesn't exist. Check the path; it is read from {str(Path.cwd())!r}.")
    kind = options.format or kind_of(file)
    if kind not in KINDS:
        way_out = " Save the sheet as csv." if kind in ("xlsx", "xls", "ods") else " Or say what it is with --format."
        suffixes = ", ".join(f".{kind}" for kind in KINDS)
        raise UserError(f"{str(path)!r} has an unknown suffix. Accepted: {suffixes}, all but the last as .gz.{way_out}")
    with readable(file), _open_bytes(file) as content:
        if not content.read(1):
            raise UserError(f"{str(path)!r} is empty. Give a file with at least one example.")
    return kind


def _dataset(
    path: str | Path,
    kind: str,
    columns: dict[str, list[Any]],
    places: Any,
    lines: int = 0,
    joined: int = 0,
    blank: int = 0,
) -> Dataset:
    """The rows in memory, with what was read of them in words."""
    if not len(places):
        raise UserError(f"{str(path)!r} has no rows. Give data with at least one example.")
    if LINE in columns:
        raise UserError(f"{path} has a column {LINE!r}, which is where rows are numbered. Rename it.")
    arrays = {name: _array(path, name, cells, places) for name, cells in columns.items()}
    table = pa.table({**arrays, LINE: pa.array(places, pa.int64())})
    extra = [f"{joined:,} of several lines"] * bool(joined) + [f"{counted(blank, 'empty line')} left out"] * bool(blank)
    read = counted(len(places), "row") + (f" from {counted(lines, 'line')}" if lines else "")
    info = DatasetInfo(description=read + (f" ({', '.join(extra)})" if extra else ""))
    info.dataset_name, info.builder_name = str(path), kind
    return Dataset(table, info=info)


def _array(path: str | Path, name: str, cells: list[Any], places: Any) -> pa.Array:
    """A column; refuses one whose values are of kinds that no column can hold together."""
    try:
        return pa.array(cells)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        kinds: dict[type, int] = {}
        for row, cell in enumerate(cells):
            if cell is not None:
                kinds.setdefault(type(cell), row)
        if len(kinds) < 2:
            raise UserError(f"{path}: column {name!r} can't be read: {sentence(error)}") from error
        found = " and ".join(f"{cells[row]!r:.40} (row {places[row]})" for row in list(kinds.values())[:2])
        raise UserError(f"{path}: column {name!r} has {found}. Write all its values in one way.") from error


def _by_column(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


# ---- JSON -----------------------------------------------------------------------------------------------------------


def _object_of(path: str | Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = _parse(line)
    except ValueError as error:
        text = error.msg + "." if isinstance(error, json.JSONDecodeError) else sentence(error)  # the line is named
        raise UserError(f"{path}, line {number} is no JSON: {text} Write one object per line.") from error
    if not isinstance(value, dict):
        way_out = " on a line of its own, or call the file .json" * isinstance(value, list)
        raise UserError(f'{path}, line {number} is no object: {line.strip():.60}. Write {{"text": "..."}}{way_out}.')
    return value


def _list_of_objects(path: str | Path, encoding: str | None) -> list[dict[str, Any]]:
    try:
        whole = _parse("".join(_lines(path, encoding)))
    except ValueError as error:
        place = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        way_out = "It must be one list of objects; call a file with an object per line .jsonl."
        raise UserError(f"{path}{place} is no JSON: {sentence(error)} {way_out}") from error
    if not isinstance(whole, list):
        raise UserError(f'{str(path)!r} holds {whole!r:.60}, no rows. Write a list of objects, [{{"text": ...}}, ...].')
    for number, row in enumerate(whole, start=1):
        if not isinstance(row, dict):
            raise UserError(f'{path}, row {number} is no object: {row!r:.60}. Write {{"text": "...", "label": "..."}}.')
    return whole


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


# ---- Parquet --------------------------------------------------------------------------------------------------------


def _read_parquet(path: Path) -> Dataset:
    """A memory-mapped file, with the classes that datasets wrote into it."""
    with readable(path, ".parquet ", (pa.ArrowException, ValueError, KeyError)):
        schema = pq.read_schema(path)
        if twice := [name for name in schema.names if schema.names.count(name) > 1]:
            raise UserError(f"{str(path)!r} names the column {twice[0]!r} twice. Give each a name of its own.")
        table = pq.read_table(path, memory_map=True)
        table.validate(full=True)
        return as_table(Dataset(table), str(path))


# ---- text -----------------------------------------------------------------------------------------------------------


def _open_bytes(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb"))


@contextlib.contextmanager
def readable(path: Path, kind: str = "", errors: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns an error of the disk, of a packed file, or one of `errors` into one that names the file."""
    unreadable: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, *errors)
    try:
        yield
    except UserError:
        raise
    except PermissionError as error:
        raise UserError(f"{str(path)!r} can't be read: {error.strerror}. Change its permissions.") from error
    except unreadable as error:
        raise UserError(f"{str(path)!r} can't be read: {sentence(error)} It must be a whole {kind}file.") from error


def _lines(path: str | Path, encoding: str | None) -> Iterator[str]:
    r"""The lines with their ends (\n, \r or \r\n), without a byte order mark.

    Raises:
        UserError: one can't be decoded; the message has its number and a way out.
    """
    name = codecs.lookup(encoding or _UTF8).name
    content: BinaryIO = io.BytesIO(sys.stdin.buffer.read()) if path == "-" else _open_bytes(Path(path))
    with readable(Path(path)), content:
        try:
            yield from io.TextIOWrapper(content, "utf-8-sig" if name == _UTF8 else name, newline="")
        except UnicodeError as error:
            raise _not_decoded(path, encoding, error) from error


def _not_decoded(path: str | Path, encoding: str | None, error: UnicodeError) -> UserError:
    """Names the line: the decoder, which reads ahead, knows only its block."""
    number, way_out = 1, "Convert it, or name its encoding: --encoding latin-1 (cp1252 on Windows)."
    if path == "-":
        return UserError(f"Standard input isn't {encoding or 'UTF-8'} text: {sentence(error)} {way_out}")
    with readable(Path(path)), _open_bytes(Path(path)) as content:
        for number, line in enumerate(content, start=1):
            if number == 1 and encoding is None and line.startswith(_UTF16):
                way_out = "Name its encoding: --encoding utf-16."
            try:
                line.decode(encoding or _UTF8)
            except UnicodeError as of_line:
                error = of_line
                break
    return UserError(f"{path}, line {number} isn't {encoding or 'UTF-8'} text: {sentence(error)} {way_out}")
