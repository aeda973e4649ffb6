"""Reads .csv and .tsv files so that each row counts once; a line that could be read in two ways is refused.

Quotes enclose a cell in a .csv. In a .tsv they do if they balance in every line, or stand around names; else they
are letters if each line then is a whole row. A cell may run over several lines where the file is consistently quoted:
no cell outside quotes holds one, and the lines inside aren't all rows by themselves. `--quoting` decides otherwise.
"""

import csv
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..errors import UserError
from .options import DataArguments
from .table import Row, Stream, Table, Tally
from .text_files import read_lines

DELIMITERS = (",", ";", "\t", "|")
_SEP = re.compile(r'"?sep=([,;|\t])"?[\r\n]*')
"""A first line by which Excel finds the delimiter; no row."""
_SAMPLE = 50
"""Lines by which the delimiter is found."""


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
    skipped: int = 0
    """Lines before the first row."""

    def lines(self) -> Iterator[str]:
        """The lines of the file, without those that are skipped."""
        return islice(read_lines(self.path, self.encoding), self.skipped, None)

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

    def width(self, line: str) -> int:
        """How many cells a line has by itself; 0 if its quotes don't balance."""
        try:
            return len(next(self.reader(iter([line])), []))
        except csv.Error:
            return 0

    @cached_property
    def unquoted(self) -> Self:
        """The same, if quotes are letters."""
        return replace(self, quotes=False)


class _Record(NamedTuple):
    """The cells of a row, and the lines that it runs over."""

    line: int
    cells: list[str]
    lines: list[str]


def open_delimited(path: Path, kind: str, options: DataArguments) -> Stream:
    """A .csv or .tsv (`kind`), which is read through once: how it is written, and how many rows it has.

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
    head = list(islice(read_lines(path, options.encoding), _SAMPLE))
    sep = _SEP.fullmatch(head[0]) if head else None
    usual = sep[1] if sep is not None else _find_delimiter(head, kind)
    dialect = Dialect(
        path,
        options.delimiter or usual,
        quotes=options.quoting != "none",
        encoding=options.encoding,
        skipped=int(sep is not None),
    )
    notes = []
    if kind == ".tsv" and options.quoting is None and _has_letter_quotes(dialect):
        dialect = replace(dialect, quotes=False)
        notes = [f"Quotes in {path.name} are letters: they don't balance in every line (--quoting csv if they do)."]
    tally, joined, may_be_rows, lone_quote = Tally(notes=notes), None, True, 0
    for record in _records(dialect):
        if not record.cells:
            tally.blank += len(record.lines)
        elif not dialect.names:
            dialect = replace(dialect, names=_names(path, record.cells, options.delimiter, usual))
        else:
            if len(record.cells) != len(dialect.names):
                raise _uneven(dialect, record)
            tally.rows += 1
        tally.lines = record.line + len(record.lines) - 1
        if len(record.lines) > 1:
            tally.joined += bool(dialect.names) and tally.rows > 0
            joined = joined or record
            may_be_rows = may_be_rows and _may_be_rows(dialect, record)
        elif dialect.quotes and not lone_quote and '"' in record.lines[0] and _has_lone_quote(record):
            lone_quote = record.line
    if joined is not None and options.quoting is None:
        _require_consistent(path, joined, lone_quote, may_be_rows)
    return dialect, tally


def _rows_below(dialect: Dialect) -> Iterator[_Record]:
    """The rows below the first; their empty cells mean None."""
    return islice((record for record in _records(dialect) if record.cells), 1, None)


def _records(dialect: Dialect) -> Iterator[_Record]:
    """The rows with their lines.

    Raises:
        UserError: quotes aren't closed, or a letter follows where one closes.
    """
    taken: list[str] = []
    before = dialect.skipped

    def feed() -> Iterator[str]:
        for line in dialect.lines():
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
    way_out = ' Write quotes inside a quoted cell double (""), and close it before the next cell.'
    if not dialect.names or dialect.unquoted.width(lines[0]) == len(dialect.names):
        way_out += " If quotes are letters in this file, say --quoting none."
    backslash = any('\\"' in line for line in lines)
    return UserError(
        f"{dialect.path}, {where}: {lines[0].strip():.60}"
        f"{' (a backslash before a quote has no meaning here)' if backslash else ''}.{way_out}"
    )


def _has_letter_quotes(dialect: Dialect) -> bool:
    """Whether quotes don't balance in every line, and each line is a row with all its cells if they are letters."""
    widths: set[int] = set()
    balanced = True
    for line in dialect.lines():
        if line.strip(" \r\n"):
            if not widths and '"' in line and dialect.width(line):
                return False  # who quotes names quotes cells
            widths.add(dialect.unquoted.width(line))
            balanced = balanced and ('"' not in line or dialect.width(line) > 0)
    return not balanced and len(widths) == 1


def _has_lone_quote(record: _Record) -> bool:
    """Whether a cell holds a quote that no writer would have left outside quotes."""
    return any(
        '"' in cell and f'"{cell.replace(chr(34), 2 * chr(34))}"' not in record.lines[0] for cell in record.cells
    )


def _may_be_rows(dialect: Dialect, record: _Record) -> bool:
    """Whether all lines of a joined row would be rows by themselves if quotes were letters."""
    width, text = len(record.cells), "".join(record.lines).rstrip("\r\n")
    quoted = ('"' + cell.replace('"', '""') + '"' for cell in record.cells)
    if width > 1 and text == dialect.delimiter.join(quoted):  # a writer that quotes every cell
        return False
    return all(dialect.unquoted.width(line) == width for line in record.lines)


def _require_consistent(path: Path, joined: _Record, lone_quote: int, may_be_rows: bool) -> None:
    last = joined.line + len(joined.lines) - 1
    if lone_quote:
        why = f"line {lone_quote} has quotes that enclose no cell"
    elif may_be_rows:
        why = "all these lines would be rows by themselves"
    else:
        return
    raise UserError(
        f"{path}, line {joined.line}: a quote opens there and closes in line {last}, and {why}. Say what quotes are: "
        "--quoting csv, they enclose cells of several lines; --quoting none, they are letters and each line is a row."
    )


def _names(path: Path, cells: list[str], delimiter: str | None, usual: str) -> tuple[str, ...]:
    """The names of the columns; one without a name gets one, as pandas names it."""
    names = tuple(cell if cell.strip() else f"Unnamed: {number}" for number, cell in enumerate(cells))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path}, line 1 names the column {twice[0]!r} twice. Give each column a name of its own.")
    if delimiter is not None and len(names) == 1 and usual in names[0]:
        raise UserError(
            f"{str(path)!r} has one column, {names[0]!r}, with --delimiter {delimiter!r}: it is separated by {usual!r}."
            " Leave --delimiter out."
        )
    return names


def _uneven(dialect: Dialect, record: _Record) -> UserError:
    have, want = len(record.cells), len(dialect.names)
    names = ", ".join(map(repr, dialect.names[:6]))
    hint = f" Put cells that hold {dialect.delimiter!r} in quotes, and name every column." if have > want else ""
    if not dialect.quotes and '"' in "".join(record.lines):
        hint += " If quotes enclose cells of several lines, say --quoting csv."
    return UserError(
        f"{dialect.path}, line {record.line} has {have} cell{'s' * (have != 1)}, the first row has {want} ({names})."
        f"{hint or ' Write each row with all its cells.'}"
    )


def _find_delimiter(head: Sequence[str], kind: str) -> str:
    """The delimiter of the first rows: the file name's, if it gives several columns, else another."""
    usual = "\t" if kind == ".tsv" else ","
    divided: dict[str, set[int]] = {}
    for mark in (usual, *DELIMITERS):
        widths = [len(row) for row in csv.reader(head, delimiter=mark, skipinitialspace=True) if row]
        if len(widths) > 1 and len(head) == _SAMPLE:  # the last row may be cut
            widths.pop()
        if widths[:1] > [1]:
            divided[mark] = set(widths)
    even = [mark for mark, widths in divided.items() if len(widths) == 1]
    return next(iter([*even, *divided]), usual)
