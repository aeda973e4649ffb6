"""Texts to be answered or healed on: of a file or of standard input, row by row, read as training reads them."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UserError, one_line
from .columns import Columns, find_columns
from .options import DataArguments
from .reading import nonempty_lines, open_file, parse_object
from .table import Row, Stream, Tally

NO_TEXT = "and answered all the same: such an answer means nothing."
"""The end of every remark on an empty text."""
_NAMED_ROWS = 10
_LOOKED_AT = 1000
"""Rows by which the columns of text are found."""


@dataclass(frozen=True)
class Text:
    """One input: a text, or a pair of them."""

    text: str
    text_pair: str | None = None
    row: Mapping[str, Any] | None = None
    """Where it comes from a file: all columns of its row, which are kept."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """The columns of the input to write beside the answer."""
        pair = {} if self.text_pair is None else {"text_pair": self.text_pair}
        return {"text": self.text, **pair} if self.row is None else self.row


@dataclass
class Inputs:
    """The texts of a file or of standard input, read lazily."""

    stream: Stream
    options: DataArguments
    """Which columns hold the text, where that was said."""
    known: Columns | None = None
    """Those that the model was trained on."""
    count: int | None = None
    """How many texts there are; None where they can't be read twice."""
    names: list[str] = field(default_factory=list)
    """All columns, where they are known."""
    tally: Tally = field(default_factory=Tally)
    """What was read."""
    empty: list[int] = field(default_factory=list)
    """Places of rows whose text is empty: they are answered."""
    _columns: Columns | None = None

    def __iter__(self) -> Iterator[Text]:
        """The texts, in order."""
        self.empty, self.tally = [], Tally()
        for row in self.stream.read(self.tally):
            if self._columns is None:
                self._columns = self._choose([row])
            text = self._text(row, self._columns)
            if not text.text.strip() or (text.text_pair is not None and not text.text_pair.strip()):
                self.empty.append(row.place)
            yield text

    def _text(self, row: Row, columns: Columns) -> Text:
        cells = {name: _plain(row.cells.get(name)) for name in columns.text}
        for name, cell in cells.items():
            if name not in row.cells or (cell is None and row.cells[name] is not None):
                raise self._no_text(row, name)
        texts = columns.text_of(cells)
        return Text(texts[0], texts[1] if columns.is_pair else None, row.cells)

    def _choose(self, rows: Sequence[Row]) -> Columns:
        """The columns that hold the text, as training finds them in these rows."""
        names = self.options.text_column_names or ""
        for name in () if names in rows[0].cells else map(str.strip, names.split(",")):
            if name and name not in rows[0].cells:
                raise self._no_text(rows[0], name)
        plain = (row._replace(cells={name: _plain(cell) for name, cell in row.cells.items()}) for row in rows)
        return find_columns(self.stream.collect(plain, Tally()), self.options, self.known, needs_label=False)

    def _no_text(self, row: Row, name: str) -> UserError:
        where = f"{self.stream.source}, {self.stream.unit} {row.place}"
        if name in row.cells:
            return UserError(
                f"{where}: column {name!r} holds {row.cells[name]!r:.60}, no text. Write one string there, or name "
                "another column with --text-column-names."
            )
        return UserError(
            f"{where}: no text in column {name!r}. It has {', '.join(map(repr, row.cells)) or 'none'}; name one with "
            "--text-column-names."
        )

    def look_through(self) -> None:
        """Reads all once, to report errors before anything is computed.

        Raises:
            UserError: a row holds no text, or there is none.
        """
        first = list(islice(self.stream.read(Tally()), _LOOKED_AT))
        if not first:
            raise UserError(f"{self.stream.source} has no texts. Give a file with at least one.")
        self._columns = self._choose(first)
        names: dict[str, None] = {}
        self.count = 0
        for text in self:
            names.update(dict.fromkeys(text.columns))
            self.count += 1
        self.names = list(names)

    def line(self) -> str:
        """What was read, and which columns are the text; the label is none of the questions."""
        if self._columns is None:
            return ""
        # The first row of a .csv without names would be lost: what was taken for a name is said.
        usual = list(self._columns.text) == self.names and (
            (self.known is not None and self.known.text == self._columns.text) or self.stream.delimiter is None
        )
        columns = "" if usual else f"{self._columns.sentence(self.names)}; "
        return f"{self.stream.source}: {columns}{self.tally}."

    def remarks(self) -> list[str]:
        """Remarks on what a reader decided and on empty texts."""
        remarks = list(self.tally.notes)
        if self.empty:
            many = "1 text is" if len(self.empty) == 1 else f"{len(self.empty):,} texts are"
            listed = ", ".join(map(str, self.empty[:_NAMED_ROWS])) + ", ..." * (len(self.empty) > _NAMED_ROWS)
            remarks.append(f"{self.stream.source}: {many} empty ({self.stream.unit} {listed}), {NO_TEXT}")
        return remarks


def _plain(cell: Any) -> Any:
    """A cell of a text; None for lists and objects."""
    return None if isinstance(cell, list | dict | bytes) else cell


def read_inputs(
    source: str,
    options: DataArguments | None = None,
    known: Columns | None = None,
    *,
    twice: bool = True,
) -> Inputs:
    """Reads the texts of a file (see `reading.open_file`) or, for `-`, of standard input.

    A line of standard input is a text, or a JSON object.

    Args:
        source: the file, or `-`.
        options: names of the columns. None: those that the model knows, or the usual ones.
        known: the columns that the model was trained on.
        twice: look the whole input through first. False: standard input is answered line by line.

    Raises:
        UserError: the file doesn't exist or holds no texts, or a row has no such column.
    """
    stream = Stream("standard input", _standard_input, "line")
    if source != "-":
        stream = open_file(check_input(source), options)
    elif twice:
        tally = Tally()
        rows = list(stream.read(tally))

        def again(counted: Tally) -> Iterator[Row]:
            counted.add(tally)
            return iter(rows)

        stream = replace(stream, read=again)
    inputs = Inputs(stream, options or DataArguments(), known)
    if twice or source != "-":
        inputs.look_through()
    return inputs


def check_input(source: str) -> Path:
    """The path of a file that is there; else a UserError."""
    path = Path(source)
    if source != "-" and not path.is_file():
        raise UserError(
            f"There is no file {source!r}. Give a .txt, .csv, .jsonl or .parquet file, or - for standard input."
        )
    return path


def _standard_input(tally: Tally) -> Iterator[Row]:
    """Lines of text; one that is a JSON object is a row."""
    for number, line in nonempty_lines(_decoded_input(), tally):
        tally.rows += 1
        cells = {"text": line.rstrip("\r\n")}
        if line.lstrip().startswith("{"):
            with suppress(ValueError):  # a text may begin with a brace
                cells = parse_object(line)
        yield Row(number, cells)


def _decoded_input() -> Iterator[str]:
    number = 1
    try:
        for line in sys.stdin:
            line.encode()  # what standard input couldn't decode is there as half a character
            yield line.removeprefix("\ufeff") if number == 1 else line
            number += 1
    except UnicodeError as error:
        raise UserError(f"standard input, line {number} isn't UTF-8 text: {one_line(error)}. Convert it.") from error
