"""Texts to be answered or healed on: of a file or of standard input, row by row, read as training reads them."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UserError, one_line
from .columns import Columns, find_columns
from .options import DataArguments
from .reading import open_file, parse_object
from .table import Row, Table, Tally

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
    words: Sequence[str] | None = None
    """The words of the text, for a model that labels words. None: those between blanks."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """The columns of the input to write beside the answer."""
        pair = {} if self.text_pair is None else {"text_pair": self.text_pair}
        return {"text": self.text, **pair} if self.row is None else self.row


@dataclass
class Inputs:
    """The texts of a file or of standard input, read lazily."""

    name: str
    rows: Callable[[Tally], Iterator[Row]]
    """All rows, from the beginning each time."""
    options: DataArguments
    """Which columns hold the text, where that was said."""
    known: Columns | None = None
    """Those that the model was trained on."""
    unit: str = "line"
    """What the places of the rows count."""
    of_words: bool = False
    """Whether a list of words is a text too."""
    is_text: bool = False
    """Whether cells are strings that may mean numbers."""
    delimiter: str | None = None
    """Of a .csv or .tsv."""
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
        for row in self.rows(self.tally):
            if self._columns is None:
                self._columns = self._choose([row])
            text = self._text(row, self._columns)
            if not all(part.strip() for part in (text.text, text.text_pair) if part is not None):
                self.empty.append(row.place)
            yield text

    def _text(self, row: Row, columns: Columns) -> Text:
        cells = row.cells
        for name in columns.text:
            is_words = self.of_words and _is_words(cells.get(name))
            if name not in cells or (isinstance(cells[name], dict | list | bytes) and not is_words):
                raise self._no_text(row, name)
        first, second = columns.texts({name: [_joined(cells[name])] for name in columns.text})
        words = cells[columns.text[0]]
        return Text(first[0], second[0] if second else None, cells, words if isinstance(words, list) else None)

    def _choose(self, rows: Sequence[Row]) -> Columns:
        """The columns that hold the text, as training finds them in these rows."""
        for name in (self.options.text_column_names or "").split(","):
            if name.strip().lower() not in {*(known.strip().lower() for known in rows[0].cells), ""}:
                raise self._no_text(rows[0], name.strip())
        plain = (
            Row(row.place, {name: _plain(cell, self.of_words) for name, cell in row.cells.items()}) for row in rows
        )
        table = Table.of_rows(self.name, plain, Tally(), unit=self.unit, is_text=self.is_text)
        return find_columns(table, self.options, self.known, needs_label=False)

    def _no_text(self, row: Row, name: str) -> UserError:
        if name in row.cells:
            return UserError(
                f"{self.name}, {self.unit} {row.place}: column {name!r} holds {row.cells[name]!r:.60}, no text. "
                "Write one string there, or name another column with --text-column-names."
            )
        return UserError(
            f"{self.name}, {self.unit} {row.place}: no text in column {name!r}. It has "
            f"{', '.join(map(repr, row.cells)) or 'none'}; name one with --text-column-names."
        )

    def look_through(self) -> None:
        """Reads all once, to report errors before anything is computed.

        Raises:
            UserError: a row holds no text, or there is none.
        """
        first = list(islice(self.rows(Tally()), _LOOKED_AT))
        if not first:
            raise UserError(f"{self.name} has no texts. Give a file with at least one.")
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
            (self.known is not None and self.known.text == self._columns.text) or not self.is_text
        )
        columns = "" if usual else f"{self._columns.sentence(self.names)}; "
        return f"{self.name}: {columns}{self.tally}."

    def remarks(self) -> list[str]:
        """Remarks on what a reader decided and on empty texts."""
        found = list(self.tally.notes)
        if self.empty:
            many = "1 text is" if len(self.empty) == 1 else f"{len(self.empty):,} texts are"
            listed = ", ".join(map(str, self.empty[:_NAMED_ROWS])) + ", ..." * (len(self.empty) > _NAMED_ROWS)
            found.append(f"{self.name}: {many} empty ({self.unit} {listed}), {NO_TEXT}")
        return found


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _joined(value: Any) -> Any:
    return " ".join(value) if _is_words(value) else value


def _plain(value: Any, of_words: bool) -> Any:
    """A cell by which columns are found: a list of words as a text, nothing for other lists and objects."""
    value = _joined(value) if of_words else value
    return None if isinstance(value, list | dict) else value


def read_inputs(
    source: str,
    options: DataArguments | None = None,
    known: Columns | None = None,
    *,
    of_words: bool = False,
    twice: bool = True,
) -> Inputs:
    """Reads the texts of a file (see `reading.open_file`) or, for `-`, of standard input.

    A line of standard input is a text, or a JSON object.

    Args:
        source: the file, or `-`.
        options: names of the columns. None: those that the model knows, or the usual ones.
        known: the columns that the model was trained on.
        of_words: a list of words is a text too.
        twice: look the whole input through first. False: standard input is answered line by line.

    Raises:
        UserError: the file doesn't exist or holds no texts, or a row has no such column.
    """
    options = options or DataArguments()
    if source == "-":
        inputs = Inputs("standard input", _standard_input, options, known, of_words=of_words)
        if twice:
            tally = Tally()
            kept = list(_standard_input(tally))
            inputs.rows = lambda counted: _again(kept, tally, counted)
    else:
        file = open_file(check_input(source), options)
        inputs = Inputs(source, file.rows, options, known, file.unit, of_words, file.is_text)
        inputs.delimiter = None if file.dialect is None else file.dialect.delimiter
    if twice or source != "-":
        inputs.look_through()
    return inputs


def _again(rows: Sequence[Row], tally: Tally, counted: Tally) -> Iterator[Row]:
    counted.add(tally)
    return iter(rows)


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
    number = 0
    lines = iter(sys.stdin)
    while True:
        number += 1
        try:
            line = next(lines)
            line.encode()  # what standard input couldn't decode is there as half a character
            line = line.removeprefix("\ufeff") if number == 1 else line
        except StopIteration:
            return
        except UnicodeError as error:
            raise UserError(
                f"standard input, line {number} isn't UTF-8 text: {one_line(error)}. Convert it."
            ) from error
        tally.lines = number
        if not line.strip():
            tally.blank += 1
            continue
        tally.rows += 1
        try:
            cells = parse_object(line) if line.lstrip().startswith("{") else {"text": line.rstrip("\r\n")}
        except ValueError:  # a text may begin with a brace
            cells = {"text": line.rstrip("\r\n")}
        yield Row(number, cells)
