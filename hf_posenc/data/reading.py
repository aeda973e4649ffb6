"""Reads a file into a `Table`: each row once and in order, or an error that says where it stops.

Text files are read by Python's `csv` and `json` and kept in memory, never taken from a cache. Each row has a number: in
a file of lines the first line of its own, from 1, where the names stand; else (.json, .parquet, data sets, what is in
memory) its place, from 0, as Python and pandas count. Every message counts like this.

A .csv is separated by commas and its quotes enclose cells; a .tsv is separated by tabs and its quotes are letters.
`delimiter` and `quoting` say otherwise. An unbalanced quote joins rows without any error, so a cell of several
lines is taken only where every cell of the file is in quotes, or where `quoting` is csv.
"""

import contextlib
import csv
import gzip
import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import UserError, one_line, readable, spell
from ..options import Options, refuse_given
from .tables import Table, as_table, counted

logger = logging.getLogger(__name__)

KINDS = ("csv", "tsv", "json", "jsonl", "txt", "parquet")
"""The suffixes that are read; all but parquet also as .gz."""
DELIMITERS = {"csv": ",", "tsv": "\t"}
"""Of the kinds whose cells have no types, what separates columns unless `delimiter` says otherwise."""


@dataclass(frozen=True)
class Dialect:
    """Options by which a training read its files of one kind; its checkpoint remembers it for others of that kind.

    Not their encoding: any bytes are latin-1, so a file in UTF-8 would be read without an error, as other letters. Nor
    `format`: what a suffix means doesn't depend on the model.
    """

    kind: str
    """One of `DELIMITERS`."""
    delimiter: str | None = None
    quoting: str | None = None


def _as_trained(path: str | Path, options: Options, dialect: Dialect | None) -> Options:
    """The options, completed by those of a training on files of this kind, which is said."""
    if dialect is None or dialect.kind != (options.format or kind_of(Path(path))):
        return options
    names = [name for name in ("delimiter", "quoting") if getattr(options, name) is None]
    trained = {name: getattr(dialect, name) for name in names if getattr(dialect, name) is not None}
    if trained:
        said = " and ".join(spell(name, value) for name, value in trained.items())
        logger.warning(
            f"{str(path)!r} is read as the model's training data was, with {said}; give another to change it."
        )
    return replace(options, **trained)


def read_file(path: str | Path, options: Options | None = None, dialect: Dialect | None = None) -> Table:
    """All rows of a file, or of standard input for `-`; its suffix says what it is, unless `format` does.

    Args:
        path: of the file.
        options: how it is read.
        dialect: how a checkpoint's training read files, where the options don't say.

    Raises:
        UserError: it isn't there, of another kind, can't be read, or a line could be read in two ways.
    """
    options = _as_trained(path, options or Options(), dialect)
    kind = options.format or kind_of(Path(path))
    if kind not in KINDS:
        suffixes = ", ".join(f".{kind}" for kind in KINDS)
        way_out = f"Accepted: {suffixes}. Or say what it is with {spell('format')}."
        raise UserError(f"{str(path)!r} has an unknown suffix. {way_out}")
    if kind not in DELIMITERS:
        refuse_given(options, ("delimiter", "quoting"), f"is for .csv and .tsv files, {str(path)!r} is none")
    if kind == "parquet":
        refuse_given(options, ("encoding",), f"is for files of text, {str(path)!r} is none")
        with readable(repr(str(path)), "Name a .parquet file that is there and whole, with a name for each column."):
            table = pq.read_table(path, memory_map=True)  # with the classes that datasets wrote into it
            table.validate(full=True)
            return as_table(table, str(path))
    lines = _read_lines(path, options)
    places: list[int] = []
    if kind in DELIMITERS:
        columns, places = _read_delimited(path, kind, lines, options)
    elif kind in ("json", "jsonl"):
        columns, places = _read_json(path, kind, lines)
    else:  # each line is a text, a blank one an empty text, so that answers stand in the order of lines
        columns = [("text", [line.rstrip("\r\n") for line in lines] if any(map(str.strip, lines)) else [])]
        places = list(range(1, len(lines) + 1))
    arrays = [_array_of(path, kind, name, cells, places) for name, cells in columns]
    rows = pa.table(arrays, [name for name, _ in columns])
    return as_table(rows, str(path), kind, places, 0 if kind == "json" else len(lines))


def _read_lines(path: str | Path, options: Options) -> list[str]:
    """The lines of a file of text, with their ends, of any kind.

    Raises:
        UserError: it isn't there, or isn't text in its encoding.
    """
    encoding = options.encoding or "utf-8"
    way_out = "Name a file that is there, whole, and UTF-8 text; or its "
    way_out += f"{spell('encoding')}: latin-1, cp1252, utf-16, ..."
    with readable(repr(str(path)), way_out):
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        content = gzip.decompress(content) if Path(path).suffix.lower() == ".gz" else content
        try:
            text = content.decode(encoding).removeprefix("\ufeff")  # without a byte order mark
        except UnicodeDecodeError as error:
            line = content[: error.start].decode(encoding, errors="replace").count("\n") + 1
            raise ValueError(f"{error}, in line {line}") from None
    return list(io.StringIO(text, newline=""))


def _array_of(path: str | Path, kind: str, name: str, cells: list[Any], places: Sequence[int]) -> pa.Array:
    """A column, of the type of its cells.

    Raises:
        UserError: they have several.
    """
    with readable(f"{path}: column {name!r}", "Write its values alike."):
        try:
            return pa.array(cells)
        except UnicodeEncodeError:
            word = "row" if kind == "json" else "line"
            refuse_surrogates((f"{word} {place}", str(cell)) for place, cell in zip(places, cells, strict=True))
            raise
        except OverflowError:
            with contextlib.suppress(OverflowError):
                return pa.array(cells, pa.uint64())  # ids of 64 bits, such as hashes
            raise
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            there = {row: cell for row, cell in enumerate(cells) if cell is not None}
            usual = next(iter(there.values()))
            if (row := next((row for row in there if type(there[row]) is not type(usual)), None)) is None:
                raise
            place = f"{'row' if kind == 'json' else 'line'} {places[row]}"
            raise ValueError(f"{place} has {there[row]!r:.40}, where others have such as {usual!r:.40}.") from None


def kind_of(path: Path) -> str:
    """The suffix that says how a file is read, without its dot: of a.csv.gz `csv`."""
    suffixes = [suffix.lower().lstrip(".") for suffix in path.suffixes]
    return suffixes[-2] if suffixes[-1:] == ["gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def doubts_of_empty(source: str, texts: Sequence[Sequence[str]], place: Callable[[int], str]) -> list[str]:
    """A sentence on texts that are empty, and answered all the same; none where there are none.

    Args:
        source: what messages call them.
        texts: `(first,)` of each row, or `(first, second)` of pairs.
        place: says where a row stands.
    """
    empty = [row for row, parts in enumerate(texts) if not all(part.strip() for part in parts)]
    if not empty:
        return []
    said = f"{source}: {len(empty):,} empty, from {place(empty[0])} on, and answered all the same"
    return [f"{said}: such an answer means nothing."]


_HALF = re.compile("[\ud800-\udfff]")


def refuse_surrogates(texts: Iterable[tuple[str, str]]) -> None:
    """Raises a UserError if one of the texts, each with its place, holds half of a character.

    Python's strings can hold that, and no file in UTF-8 can.
    """
    for place, text in texts:
        if not text.isascii() and (half := _HALF.search(text)):
            what = f"{place} holds {half[0]!r}, one half of a surrogate pair, which is no character"
            raise UserError(f"{what}. Write the whole character, or leave it out.")


# ---- .csv and .tsv --------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A row as it is written: its cells, its lines, and the number of the first of these."""

    cells: list[str]
    lines: list[str]
    first: int

    @property
    def is_blank(self) -> bool:
        """True where it is no row, or in a file of one column an empty cell."""
        return len(self.cells) < 2 and not self.lines[0].strip(" \r\n")

    def is_quoted(self, delimiter: str) -> bool:
        """True where all of its cells are enclosed by quotes."""
        cells = ['"' + cell.replace('"', '""') + '"' for cell in self.cells]
        return "".join(self.lines).rstrip("\r\n") == delimiter.join(cells)


def _read_delimited(
    path: str | Path, kind: str, lines: list[str], options: Options
) -> tuple[list[tuple[str, Any]], list[int]]:
    """The cells below each name, an empty one as None, and the first line of each row.

    Raises:
        UserError: a line can't be read, or could be read in two ways; the message names it.
    """
    delimiter, guesses = options.delimiter or DELIMITERS[kind], options.quoting is None
    quotes = kind == "csv" if guesses else options.quoting == "csv"
    names: list[str] = []
    rows: list[list[str]] = []
    places: list[int] = []
    joined = not_quoted = 0  # the first row that spans several lines, and the first that has a cell without quotes
    for row in _rows_of(path, lines, delimiter, quotes):
        if row.is_blank:
            if len(names) != 1:
                continue
            row = row._replace(cells=[""])
        if guesses and not quotes:
            _refuse_enclosed(path, row)
        if guesses and len(row.lines) > 1:
            joined = joined or row.first
        if not names:
            names = row.cells
            continue
        _check_row(path, row, names, delimiter)
        if not not_quoted and not row.is_quoted(delimiter):
            not_quoted = row.first
        rows.append(row.cells)
        places.append(row.first)
    if joined and not_quoted:
        opens = f"{path}, line {joined}: a quote opens there and closes in a later line"
        raise UserError(f"{opens}, and line {not_quoted} has a cell without quotes. {_say_quotes()}")
    names = [name or f"Unnamed: {number}" for number, name in enumerate(names)]  # as pandas names it
    columns = zip(*rows, strict=True)
    return [(name, [cell or None for cell in cells]) for name, cells in zip(names, columns, strict=False)], places


def _rows_of(path: str | Path, lines: list[str], delimiter: str, quotes: bool) -> Iterator[_Row]:
    """The rows of a file, also blank ones; `quotes` enclose cells, or are letters."""
    csv.field_size_limit(sys.maxsize)
    quoting: Any = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, skipinitialspace=quotes, strict=True)
    end = 0
    try:
        for cells in reader:
            yield _Row(cells, lines[end : reader.line_num], end + 1)
            end = reader.line_num
    except csv.Error as error:
        raise UserError(
            f"{path}, line {end + 1}: {one_line(error)}. A quote that opens a cell must close it, and quotes inside "
            f'are written double (""), not \\". If quotes are letters in this file, say {spell("quoting", "none")}.'
        ) from error


def _refuse_enclosed(path: str | Path, row: _Row) -> None:
    """Refuses a cell that begins and ends with a quote, in a file where quotes would be letters."""
    enclosed = [cell for cell in map(str.strip, row.cells) if len(cell) > 1 and cell[0] == cell[-1] == '"']
    if enclosed:
        cell = f"{path}, line {row.first}: the cell {enclosed[0]:.40} begins and ends with a quote"
        raise UserError(f"{cell}. {_say_quotes()}")


def _check_row(path: str | Path, row: _Row, names: list[str], delimiter: str) -> None:
    """Refuses a row that has not one cell for each name, or holds the names."""
    if len(row.cells) != len(names):
        raise UserError(
            f"{path}, line {row.first} has {counted(len(row.cells), 'cell')}, the first row has {len(names)} "
            f"({', '.join(names)}). Put cells that hold {delimiter!r} in quotes. If another character "
            f"separates the columns: {spell('delimiter', ';')} (or '|', tab). If quotes enclose lines: "
            f"{spell('quoting', 'csv')}."
        )
    if row.cells == names and len(names) > 1:  # a single cell may be the word
        raise UserError(f"{path}, line {row.first} is the first row once more. Remove it.")


def _say_quotes() -> str:
    enclose = spell("quoting", "csv")
    letters = spell("quoting", "none")
    return f"Say what quotes are: {enclose}, they enclose cells; {letters}, they are letters."


# ---- JSON -----------------------------------------------------------------------------------------------------------


_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _read_json(path: str | Path, kind: str, lines: list[str]) -> tuple[list[tuple[str, Any]], list[int]]:
    """The values of each key, None where an object lacks it, and the line or number of each object."""
    rows: list[Any]
    if kind == "jsonl":
        places = [number for number, line in enumerate(lines, start=1) if line.strip()]
        rows = [_value_in(lines[place - 1], f"{path}, line {place}") for place in places]
    else:
        rows = _value_in("".join(lines), str(path), must_list=True)
        places = list(range(len(rows)))
    unit = "line" if kind == "jsonl" else "row"
    has_escapes = any(map(_ESCAPED_HALF.search, lines))
    for place, row in zip(places, rows, strict=True):
        source = f"{path}, {unit} {place}"
        if not isinstance(row, dict):
            raise UserError(f'{source} is no object: {row!r:.60}. Write {{"text": ...}}, or call a list .json.')
        if has_escapes:
            refuse_surrogates([(source, json.dumps(row, ensure_ascii=False))])
    names = dict.fromkeys(name for row in rows for name in row)
    return [(name, [row.get(name) for row in rows]) for name in names], places


def _value_in(text: str, source: str, *, must_list: bool = False) -> Any:
    """The value that a text in JSON holds."""
    with readable(source, "Write an object on each line in a .jsonl file, one list of objects in a .json file."):
        value = json.loads(text, object_pairs_hook=keys_once)
        if must_list and not isinstance(value, list):
            raise ValueError(f"it holds {value!r:.60}, no list of objects.")
        return value


def keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; refuses one that holds a key twice, of which some parsers drop the first, some the last."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it holds {max(names, key=names.count)!r} twice")
    return row
