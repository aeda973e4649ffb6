"""Reads .csv and .tsv files so that each row counts once; a line that could be read in two ways is refused.

A .csv is separated by commas and its quotes enclose cells; a .tsv is separated by tabs and its quotes are letters.
`--delimiter` and `--quoting` say otherwise. An unbalanced quote joins rows without any error, so a cell of several
lines is taken only where every cell of the file is in quotes, or with `--quoting csv`.
"""

import csv
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import UserError
from ..options import Options

_DELIMITERS = {"csv": ",", "tsv": "\t"}


class _Record(NamedTuple):
    """The cells of a row, and the lines that it runs over."""

    line: int
    cells: list[str]
    lines: list[str]


@dataclass
class DelimitedFile:
    """A .csv or .tsv, read once.

    Args:
        source: what messages call the file.
        kind: `csv` or `tsv`.
        options: delimiter and quoting.

    Attributes:
        columns: the cells below each name; an empty cell is None.
        places: the number of each row's first line, from 1.
        lines, joined, blank: how many lines there are, rows of several lines, and empty lines, which are no rows.
    """

    source: str
    kind: str
    options: Options
    columns: dict[str, list[str | None]] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    lines: int = 0
    joined: int = 0
    blank: int = 0

    def __post_init__(self) -> None:
        self.delimiter = self.options.delimiter or _DELIMITERS[self.kind]
        self.quotes = self.kind == "csv" if self.options.quoting is None else self.options.quoting == "csv"

    def read(self, lines: Iterable[str]) -> None:
        """Reads all rows.

        Raises:
            UserError: a line can't be read, or could be read in two ways; the message names it.
        """
        guesses = self.options.quoting is None
        first_joined: _Record | None = None
        not_quoted = 0
        appends: list[Any] = []
        names: list[str] = []
        for record in self._records(lines):
            self.lines = record.line + len(record.lines) - 1
            if not record.cells:
                self.blank += len(record.lines)
                continue
            if guesses and not self.quotes:
                self._refuse_enclosed(record)
            if len(record.lines) > 1:
                first_joined = first_joined or record
                self.joined += bool(appends)
            if not appends:
                names, self.columns = record.cells, {name: [] for name in self._names(record.cells)}
                appends = [cells.append for cells in self.columns.values()]
                continue
            if len(record.cells) != len(appends):
                raise self._uneven(record)
            if record.cells == names:
                raise UserError(f"{self.source}, line {record.line} is the first row once more. Remove it.")
            if guesses and not not_quoted and not self._is_quoted(record):
                not_quoted = record.line
            for append, cell in zip(appends, record.cells, strict=True):
                append(cell or None)
            self.places.append(record.line)
        if first_joined is not None and not_quoted and guesses:
            last = first_joined.line + len(first_joined.lines) - 1
            raise UserError(
                f"{self.source}, line {first_joined.line}: a quote opens there, closes in line {last}, and line "
                f"{not_quoted} has a cell without quotes. Say what quotes are: --quoting csv, they enclose cells of "
                "several lines; --quoting none, they are letters and each line is a row."
            )

    def _records(self, lines: Iterable[str]) -> Iterator[_Record]:
        taken: list[str] = []
        before = 0

        def feed() -> Iterator[str]:
            for line in lines:
                if "\0" in line:
                    raise UserError(f"{self.source}, line {before + len(taken) + 1} holds a NUL byte. Remove it.")
                taken.append(line)
                yield line

        csv.field_size_limit(sys.maxsize)
        quoting: Any = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        rows = csv.reader(feed(), delimiter=self.delimiter, quoting=quoting, skipinitialspace=True, strict=True)
        try:
            for cells in rows:
                is_blank = len(cells) < 2 and len(taken) == 1 and not taken[0].strip(" \r\n")
                yield _Record(before + 1, [] if is_blank else cells, taken[:])
                before += len(taken)
                taken.clear()
        except csv.Error as error:
            raise self._bad_quotes(before + 1, taken) from error

    def _is_quoted(self, record: _Record) -> bool:
        """Whether every cell is in quotes."""
        quoted = ('"' + cell.replace('"', '""') + '"' for cell in record.cells)
        return "".join(record.lines).rstrip("\r\n") == self.delimiter.join(quoted)

    def _refuse_enclosed(self, record: _Record) -> None:
        for cell in record.cells:
            if len(cell) > 1 and cell[0] == cell[-1] == '"':
                raise UserError(
                    f"{self.source}, line {record.line}: the cell {cell:.40} begins and ends with a quote. Say what "
                    "quotes are in this .tsv: --quoting csv, they enclose cells; --quoting none, they are letters."
                )

    def _names(self, cells: list[str]) -> list[str]:
        """The names of the columns; one without a name gets one, as pandas names it."""
        names = [cell if cell.strip() else f"Unnamed: {number}" for number, cell in enumerate(cells)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(
                f"{self.source}, line 1 names the column {twice[0]!r} twice. Give each column a name of its own."
            )
        return names

    def _bad_quotes(self, first: int, lines: list[str]) -> UserError:
        last = first + len(lines) - 1
        where = f"line {first} has quotes that don't enclose a cell"
        if last > first:
            where = f"line {first}: a quote opens there, and no quote that ends a cell follows up to line {last}"
        backslash = " (a backslash before a quote has no meaning here)" * any('\\"' in line for line in lines)
        return UserError(
            f"{self.source}, {where}: {lines[0].strip():.60}{backslash}. Write quotes inside a quoted cell double "
            '(""), and close it before the next cell. If quotes are letters in this file, say --quoting none.'
        )

    def _uneven(self, record: _Record) -> UserError:
        have, want = len(record.cells), len(self.columns)
        names = ", ".join(map(repr, list(self.columns)[:6]))
        hint = f" Put cells that hold {self.delimiter!r} in quotes, and name every column." if have > want else ""
        if want == 1:
            hint = " If another character separates the columns, say --delimiter ';' (or '|', tab)."
        if not self.quotes and '"' in "".join(record.lines):
            hint += " If quotes enclose cells of several lines, say --quoting csv."
        return UserError(
            f"{self.source}, line {record.line} has {have} cell{'s' * (have != 1)}, the first row has {want} "
            f"({names}).{hint or ' Write each row with all its cells.'}"
        )
