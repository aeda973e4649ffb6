"""Reads .csv and .tsv files so that each row counts once; a line that could be read in two ways is refused.

A .csv is separated by commas and its quotes enclose cells; a .tsv is separated by tabs and its quotes are letters.
`--delimiter` and `--quoting` say otherwise. An unbalanced quote joins rows without any error, so a cell of several
lines is taken only where every cell of the file is in quotes, or with `--quoting csv`.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from .options import DataArguments
from .table import Row, Stream, Table, Tally
from .text_files import read_lines

_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Dialect:
    """How a file is written."""

    path: Path
    delimiter: str
    quotes: bool
    """Whether quotes enclose cells; else they are letters."""
    names: tuple[str, ...] = ()
    """The first row."""
    encoding: str | None = None

    def reader(self, lines: Iterator[str]) -> Any:
        """Python's csv reader of this dialect, which refuses what it can't read."""
        csv.field_size_limit(sys.maxsize)
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE,
            skipinitialspace=True,  # text, label
            strict=True,
        )


class _Record(NamedTuple):
    """The cells of a row, and the lines that it runs over."""

    line: int
    cells: list[str]
    lines: list[str]


def open_delimited(path: Path, kind: str, options: DataArguments) -> Stream:
    """A .csv or .tsv (`kind`), which is read through once: its columns, and how many rows it has.

    Raises:
        UserError: a line can't be read, or could be read in two ways; the message names it.
    """
    dialect, tally = _survey(path, kind, options)

    def read(counted: Tally) -> Iterator[Row]:
        counted.add(tally)
        for line, cells, _ in _rows_below(dialect):
            yield Row(line, {name: cell or None for name, cell in zip(dialect.names, cells, strict=True)})

    def load() -> Table:
        """Column by column, which takes half the time."""
        columns: dict[str, list[str | None]] = {name: [] for name in dialect.names}
        appends, places = [cells.append for cells in columns.values()], []
        for line, cells, _ in _rows_below(dialect):
            for append, cell in zip(appends, cells, strict=True):
                append(cell or None)
            places.append(line)
        return Table(str(path), columns, places, "line", is_text=True, tally=tally)

    return Stream(str(path), read, "line", dialect.delimiter, names=dialect.names, load=load)


def _survey(path: Path, kind: str, options: DataArguments) -> tuple[Dialect, Tally]:
    quotes = kind == ".csv" if options.quoting is None else options.quoting == "csv"
    dialect = Dialect(path, options.delimiter or _DELIMITERS[kind], quotes, encoding=options.encoding)
    tally, joined, not_quoted = Tally(), None, 0
    for record in _records(dialect):
        if not record.cells:
            tally.blank += len(record.lines)
        elif not dialect.names:
            dialect = replace(dialect, names=_names(path, record.cells))
        else:
            if len(record.cells) != len(dialect.names):
                raise _uneven(dialect, record)
            tally.rows += 1
            tally.joined += len(record.lines) > 1
            not_quoted = not_quoted or (0 if _is_quoted(dialect, record) else record.line)
        tally.lines = record.line + len(record.lines) - 1
        if len(record.lines) > 1:
            joined = joined or record
        if options.quoting is None and not quotes:
            _refuse_enclosed(path, record)
    if joined is not None and not_quoted and options.quoting is None:
        raise UserError(
            f"{path}, line {joined.line}: a quote opens there, closes in line {joined.line + len(joined.lines) - 1}, "
            f"and line {not_quoted} has a cell without quotes. Say what quotes are: --quoting csv, they enclose cells "
            "of several lines; --quoting none, they are letters and each line is a row."
        )
    return dialect, tally


def _is_quoted(dialect: Dialect, record: _Record) -> bool:
    """Whether every cell is in quotes."""
    quoted = ('"' + cell.replace('"', '""') + '"' for cell in record.cells)
    return "".join(record.lines).rstrip("\r\n") == dialect.delimiter.join(quoted)


def _refuse_enclosed(path: Path, record: _Record) -> None:
    """Refuses a cell of a .tsv that looks quoted."""
    for cell in record.cells:
        if len(cell) > 1 and cell[0] == cell[-1] == '"':
            raise UserError(
                f"{path}, line {record.line}: the cell {cell:.40} begins and ends with a quote. Say what quotes are in "
                "this .tsv: --quoting csv, they enclose cells; --quoting none, they are letters."
            )


def _rows_below(dialect: Dialect) -> Iterator[_Record]:
    """The rows below the first; their empty cells mean None."""
    return islice((record for record in _records(dialect) if record.cells), 1, None)


def _records(dialect: Dialect) -> Iterator[_Record]:
    """The rows with their lines.

    Raises:
        UserError: quotes aren't closed, or a letter follows where one closes.
    """
    taken: list[str] = []
    before = 0

    def feed() -> Iterator[str]:
        for line in read_lines(dialect.path, dialect.encoding):
            if "\0" in line:
                raise UserError(f"{dialect.path}, line {before + len(taken) + 1} holds a NUL byte. Remove it.")
            taken.append(line)
            yield line

    try:
        for cells in dialect.reader(feed()):
            is_blank = len(cells) < 2 and len(taken) == 1 and not taken[0].strip(" \r\n")
            yield _Record(before + 1, [] if is_blank else cells, taken[:])
            before += len(taken)
            taken.clear()
    except csv.Error as error:
        raise _bad_quotes(dialect, before + 1, taken) from error


def _bad_quotes(dialect: Dialect, first: int, lines: list[str]) -> UserError:
    last = first + len(lines) - 1
    where = f"line {first} has quotes that don't enclose a cell"
    if last > first:
        where = f"line {first}: a quote opens there, and no quote that ends a cell follows up to line {last}"
    backslash = any('\\"' in line for line in lines)
    return UserError(
        f"{dialect.path}, {where}: {lines[0].strip():.60}"
        f"{' (a backslash before a quote has no meaning here)' if backslash else ''}. Write quotes inside a quoted "
        'cell double (""), and close it before the next cell. If quotes are letters in this file, say --quoting none.'
    )


def _names(path: Path, cells: list[str]) -> tuple[str, ...]:
    """The names of the columns; one without a name gets one, as pandas names it."""
    names = tuple(cell if cell.strip() else f"Unnamed: {number}" for number, cell in enumerate(cells))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path}, line 1 names the column {twice[0]!r} twice. Give each column a name of its own.")
    return names


def _uneven(dialect: Dialect, record: _Record) -> UserError:
    have, want = len(record.cells), len(dialect.names)
    names = ", ".join(map(repr, dialect.names[:6]))
    hint = f" Put cells that hold {dialect.delimiter!r} in quotes, and name every column." if have > want else ""
    if want == 1:
        hint = " If another character separates the columns, say --delimiter ';' (or '|', tab)."
    if not dialect.quotes and '"' in "".join(record.lines):
        hint += " If quotes enclose cells of several lines, say --quoting csv."
    return UserError(
        f"{dialect.path}, line {record.line} has {have} cell{'s' * (have != 1)}, the first row has {want} ({names})."
        f"{hint or ' Write each row with all its cells.'}"
    )
