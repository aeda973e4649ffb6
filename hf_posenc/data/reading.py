"""Reads files: each row once and in order, or an error that names the line. One reader for every command."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import UserError, sentence
from . import delimited
from .options import DataArguments
from .table import Row, Table, Tally, classes_of, concatenate
from .text_files import is_empty, read_lines, readable, text_of

KINDS = (".csv", ".tsv", ".json", ".jsonl", ".txt", ".conll", ".parquet")
"""The suffixes that are read; all but .parquet also as .gz."""
_COMMENT = re.compile(r"# \S+ = ")
_LINES = (".csv", ".tsv", ".jsonl", ".txt", ".conll")


@dataclass(frozen=True)
class RowFile:
    """A file of rows, which can be read any number of times. Nothing of it is kept in memory."""

    path: Path
    kind: str
    options: DataArguments
    dialect: delimited.Dialect | None = None
    tally: Tally | None = None
    """What the whole file holds, where it had to be read through before."""

    @property
    def is_text(self) -> bool:
        """Whether all cells are strings that may mean numbers."""
        return self.dialect is not None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Its columns, where they are known before a row is read."""
        if self.kind == ".parquet":
            return tuple(_open_parquet(self.path).schema_arrow.names)
        return () if self.dialect is None else self.dialect.names

    @cached_property
    def classes(self) -> dict[str, tuple[str, ...]]:
        """The names that a .parquet declares for the numbers of its columns."""
        if self.kind != ".parquet":
            return {}
        from datasets import Features

        return classes_of(Features.from_arrow_schema(_open_parquet(self.path).schema_arrow))

    @property
    def unit(self) -> str:
        """What the places of its rows count."""
        return "line" if self.kind in _LINES else "row"

    def rows(self, tally: Tally | None = None) -> Iterator[Row]:
        """All rows, from the first on.

        Args:
            tally: is counted up while they are read.

        Raises:
            UserError: a row can't be read; the message names its line.
        """
        tally = Tally() if tally is None else tally
        if self.dialect is not None:
            assert self.tally is not None
            tally.add(self.tally)
            yield from delimited.read_rows(self.dialect)
            return
        readers: dict[str, Callable[[Path, str | None, Tally], Iterator[Row]]] = {
            ".json": _read_json,
            ".jsonl": _read_json_lines,
            ".txt": _read_text,
            ".conll": _read_conll,
            ".parquet": _read_parquet,
        }
        for row in readers[self.kind](self.path, self.options.encoding, tally):
            tally.rows += 1
            yield row


def open_file(path: str | Path, options: DataArguments | None = None) -> RowFile:
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
        dialect, tally = delimited.survey(file, options)
        return RowFile(file, kind, options, dialect, tally)
    for name in ("delimiter", "quoting", "decimal"):
        if (value := getattr(options, name)) is not None:
            raise UserError(f"--{name} {value!r} is for .csv and .tsv files, {str(path)!r} is none. Leave it out.")
    return RowFile(file, kind, options)


def kind_of(path: Path) -> str:
    """The suffix that says how a file is read: of a.csv.gz `.csv`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def read_table(path: str | Path, options: DataArguments | None = None, more: Sequence[str | Path] = ()) -> Table:
    """All rows of a file in memory; of its further shards too.

    Raises:
        UserError: see `open_file`; or there is no row, or a shard has other columns.
    """
    files = [open_file(one, options) for one in (path, *more)]
    require_same_columns(files)
    tables = [_read(file) for file in files]
    return tables[0] if not more else concatenate(tables, str(path))


def require_same_columns(files: Sequence[RowFile]) -> None:
    """Refuses shards with other columns, or other classes, than the first; an object of JSON may lack a key."""
    for file in files[1:]:
        if file.names != files[0].names or file.classes != files[0].classes:
            raise UserError(
                f"{str(file.path)!r} has other columns than {str(files[0].path)!r}. Give all shards the same columns, "
                "in one order, and the same classes."
            )


def _read(file: RowFile) -> Table:
    if file.kind == ".parquet":  # its rows are typed, and may name classes
        return _parquet_table(file)
    if file.dialect is not None and file.tally is not None:
        columns, places = delimited.read_columns(file.dialect)
        table = Table(str(file.path), columns, places, unit=file.unit, is_text=True, tally=file.tally)
    else:
        tally = Tally()
        table = Table.of_rows(str(file.path), file.rows(tally), tally, unit=file.unit)
    if not len(table):
        raise UserError(f"{str(file.path)!r} has no rows. Give a file with at least one example.")
    return table


# ---- JSON -----------------------------------------------------------------------------------------------------------


def _read_json_lines(path: Path, encoding: str | None, tally: Tally) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path, encoding), start=1):
        tally.lines = number
        if not line.strip():
            tally.blank += 1
            continue
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
    """A list of objects, one object per line, or one list of objects in an object."""
    text = text_of(path, encoding)
    try:
        whole = _parse(text)
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            yield from (Row(number, row.cells) for number, row in enumerate(_read_json_lines(path, encoding, tally), 1))
            return
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"{path}{where} is no JSON: {sentence(error)} It must be a whole file.") from error
    for number, row in enumerate(_rows_of(path, whole, tally), start=1):
        if not isinstance(row, dict):
            raise UserError(f'{path}, row {number} is no object: {row!r:.60}. Write {{"text": "...", "label": "..."}}.')
        yield Row(number, row)


def _rows_of(path: Path, whole: Any, tally: Tally) -> list[Any]:
    if isinstance(whole, list):
        return whole
    if not isinstance(whole, dict):
        raise UserError(f'{str(path)!r} holds {whole!r:.60}, no rows. Write a list of objects, [{{"text": ...}}, ...].')
    lists = [name for name, value in whole.items() if value and isinstance(value, list) and isinstance(value[0], dict)]
    if len(lists) == 1:
        if others := [name for name in whole if name != lists[0]]:
            tally.notes.append(
                f"The rows of {path.name} are its list {lists[0]!r}; {', '.join(others[:9])} isn't read."
            )
        return list(whole[lists[0]])
    if lists or all(isinstance(value, list | dict) for value in whole.values()):
        raise UserError(
            f"{str(path)!r} is one object with {', '.join(map(repr, list(whole)[:5])) or 'nothing'}, not rows. Write a "
            'list of objects, [{"text": ..., "label": ...}, ...], or one object per line.'
        )
    return [whole]


# ---- plain text -----------------------------------------------------------------------------------------------------


def _read_text(path: Path, encoding: str | None, tally: Tally) -> Iterator[Row]:
    """One text per line."""
    for number, line in enumerate(read_lines(path, encoding), start=1):
        tally.lines = number
        if line.strip():
            yield Row(number, {"text": line.rstrip("\r\n")})
        else:
            tally.blank += 1


def _read_conll(path: Path, encoding: str | None, tally: Tally) -> Iterator[Row]:
    """One word per line with its label last; an empty line ends a sentence. -DOCSTART- and `# x = y` are left out."""
    words: list[str] = []
    tags: list[str] = []
    start = number = width = 0
    for number, line in enumerate(read_lines(path, encoding), start=1):
        cells = line.split("\t") if "\t" in line.strip() else line.split()
        cells = [cell.strip() for cell in cells]
        if not line.strip() or cells[0] == "-DOCSTART-":
            if words:
                yield _sentence(path, start, words, tags)
                words, tags = [], []
            continue
        if _COMMENT.match(line):
            continue
        width = width or len(cells)
        if len(cells) < 2 or not cells[0] or not cells[-1] or len(cells) != width:
            raise UserError(
                f"{path}, line {number} is {line.strip():.60}. Write a word and its label, last, with a blank or a tab "
                "between them, as many columns in each line, and an empty line after each sentence."
            )
        start = start if words else number
        words.append(cells[0])
        tags.append(cells[-1])
    tally.lines = number
    if words:
        yield _sentence(path, start, words, tags)


def _sentence(path: Path, line: int, words: list[str], tags: list[str]) -> Row:
    if len(words) > 1 and words == list(map(str, range(1, len(words) + 1))):
        raise UserError(
            f"{path}, line {line}: the first column numbers the words. Put the word first and its label last."
        )
    return Row(line, {"tokens": words, "tags": tags})


# ---- Parquet --------------------------------------------------------------------------------------------------------


def _open_parquet(path: Path) -> pq.ParquetFile:
    with readable(path, ".parquet "):
        try:
            file = pq.ParquetFile(path)
            names = file.schema_arrow.names
            if twice := [name for name in names if names.count(name) > 1]:
                raise UserError(f"{str(path)!r} names the column {twice[0]!r} twice. Give each a name of its own.")
            return file
        except pa.ArrowInvalid as error:
            raise _not_parquet(path, error) from error


def _not_parquet(path: Path, error: Exception) -> UserError:
    return UserError(f"{str(path)!r} can't be read: {sentence(error)} It must be a whole .parquet file.")


def _read_parquet(path: Path, encoding: str | None, tally: Tally) -> Iterator[Row]:
    number = 0
    try:
        for batch in _open_parquet(path).iter_batches():
            batch.validate(full=True)
            for cells in batch.to_pylist():
                number += 1
                yield Row(number, cells)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _not_parquet(path, error) from error


def _parquet_table(file: RowFile) -> Table:
    from datasets import Dataset

    _open_parquet(file.path)
    try:
        dataset = Dataset(pq.read_table(file.path))
        dataset.data.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _not_parquet(file.path, error) from error
    if not len(dataset):
        raise UserError(f"{str(file.path)!r} has no rows. Give a file with at least one example.")
    return replace(Table.of_dataset(str(file.path), dataset), unit="row")
