"""Reads texts without labels, for answers or for healing: of a file or of standard input, row by row."""

import contextlib
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import Dataset

from ..errors import UserError, one_line, sentence
from .columns import Columns, find_columns
from .options import DataArguments
from .reading import find_delimiter, read_file, reading, what_is_read
from .text_lines import bad_line, parse_object


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


_NAMED_ROWS = 10


_LOOKED_AT = 100
"""Rows by which the columns of text are found."""


NO_TEXT = "and answered all the same: such an answer means nothing."
"""The end of every remark on an empty text."""


@dataclass
class Inputs:
    """The texts of a file or of standard input, read lazily."""

    name: str
    rows: Callable[[], Iterator[tuple[int, Any]]]
    """Rows with their numbers, from the beginning each time: a dictionary, or one line of text."""
    options: DataArguments
    """Which columns hold the text, where that was said."""
    known: Columns | None = None
    """Those that the model was trained on."""
    unit: str = "row"
    """What the numbers count."""
    of_words: bool = False
    """Whether a list of words is a text too."""
    is_csv: bool = False
    """Whether cells are strings that may mean numbers, and the first row is a header."""
    delimiter: str | None = None
    """Between the columns of a .csv or .tsv."""
    count: int | None = None
    """How many texts there are; None where they can't be read twice."""
    names: list[str] = field(default_factory=list)
    """All columns, where they are known."""
    empty: list[int] = field(default_factory=list)
    """Numbers of rows whose text is empty: they are answered."""
    skipped: list[int] = field(default_factory=list)
    """Numbers of empty lines of plain text: they are no texts."""
    _columns: Columns | None = None

    def __iter__(self) -> Iterator[Text]:
        """The texts, in order."""
        self.empty, self.skipped = [], []
        for number, row in self.rows():
            text = self._text(number, row)
            if text is None:
                self.skipped.append(number)
                continue
            if not all(part.strip() for part in (text.text, text.text_pair) if part is not None):
                self.empty.append(number)
            yield text

    def _text(self, number: int, row: Any) -> Text | None:
        if isinstance(row, str):
            return Text(row) if row.strip() else None
        where = self._place(number)
        if self._columns is None:
            self._columns = self._choose([row], where)
        texts = {name: self._joined(value) for name, value in row.items()} if self.of_words else row
        _check_row(texts, self._columns.text, where)
        first, second = self._columns.texts({name: [texts[name]] for name in self._columns.text})
        words = row[self._columns.text[0]]
        return Text(first[0], second[0] if second else None, row, words if isinstance(words, list) else None)

    def _joined(self, value: Any) -> Any:
        """A list of words, where that is a text, with blanks between them; other values as they are."""
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return " ".join(value)
        return value

    def _choose(self, rows: list[Mapping[str, Any]], where: str) -> Columns:
        """The columns that hold the text, as training finds them in these rows."""
        held = Dataset.from_dict(
            {
                name: [_plain(self._joined(row.get(name)) if self.of_words else row.get(name)) for row in rows]
                for name in rows[0]
            }
        )
        held.info.builder_name = "csv" if self.is_csv else None
        there = {name.strip().lower() for name in rows[0]}
        for name in (self.options.text_column_names or "").split(","):
            if name.strip().lower() not in {*there, ""}:
                raise _no_text(where, name.strip(), rows[0])
        return find_columns(held, self.options, self.known)

    def look_through(self) -> None:
        """Reads all once, to report errors before anything is computed.

        Raises:
            UserError: a row holds no text, or there is none.
        """
        names: dict[str, None] = {}
        self.count = 0
        first = [(number, row) for number, row in islice(self.rows(), _LOOKED_AT) if isinstance(row, dict)]
        if first:
            self._columns = self._choose([row for _, row in first], self._place(first[0][0]))
        for text in self:
            names.update(dict.fromkeys(text.columns))
            self.count += 1
        if self.count == 0:
            raise UserError(f"{self.name} has no texts. Give a file with at least one.")
        self.names = list(names)

    def _place(self, number: int) -> str:
        return f"{self.name}, {self.unit} {number}" + (" (the header is row 1)" if self.is_csv else "")

    def remarks(self) -> list[str]:
        """Remarks on empty texts and lines."""
        found = []
        header = "; the header is row 1" if self.is_csv else ""
        if self.empty:
            found.append(
                f"{self.name}: {_how_many(self.empty, 'text')} empty ({self.unit} {_listed(self.empty)}{header}), "
                f"{NO_TEXT}"
            )
        if self.skipped:
            found.append(
                f"{self.name}: {_how_many(self.skipped, 'line')} empty (line {_listed(self.skipped)}), and skipped."
            )
        return found


def _plain(value: Any) -> str | None:
    """A string cell; None for anything else."""
    return value if isinstance(value, str) else None


def _check_row(row: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    for name in names:
        if name not in row or isinstance(row[name], dict | list):
            raise _no_text(where, name, row)


def _no_text(where: str, name: str, row: Mapping[str, Any]) -> UserError:
    return UserError(
        f"{where}: no text in column {name!r}. It has {', '.join(map(repr, row)) or 'none'}; name one with "
        "--text-column-names."
    )


def _how_many(numbers: Sequence[int], what: str) -> str:
    return f"1 {what} is" if len(numbers) == 1 else f"{len(numbers):,} {what}s are"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_NAMED_ROWS])) + (", ..." if len(numbers) > _NAMED_ROWS else "")


def read_inputs(
    source: str,
    options: DataArguments | None = None,
    known: Columns | None = None,
    *,
    of_words: bool = False,
    twice: bool = True,
) -> Inputs:
    """Reads the texts of a file or, for `-`, of standard input.

    A .txt file or standard input has one text per line, or a JSON object; other files are read as for training: .csv,
    .tsv, .json, .jsonl (also .gz), .parquet.

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
        inputs = Inputs("standard input", lambda: _lines(sys.stdin, "standard input"), options, known, "line")
        if twice:
            kept = list(inputs.rows())
            inputs.rows = lambda: iter(kept)
    else:
        path = check_input(source)
        suffixes = [suffix.lower() for suffix in path.suffixes]
        kind = "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:])
        if kind in ("", ".txt", ".txt.gz"):
            inputs = Inputs(source, lambda: _lines_of(path), options, known, "line")
        elif kind in (".jsonl", ".jsonl.gz"):
            inputs = Inputs(source, lambda: _objects_of(path), options, known, "line")
        else:
            is_csv = kind.startswith((".csv", ".tsv"))
            inputs = Inputs(source, lambda: _rows_of(source, kind, options.delimiter), options, known, is_csv=is_csv)
    inputs.of_words = of_words
    if twice or source != "-":
        inputs.look_through()
    if inputs.is_csv:
        inputs.delimiter = options.delimiter or find_delimiter(path, kind[:4])
    return inputs


def check_input(source: str) -> Path:
    """The path of a file that is there; else a UserError."""
    path = Path(source)
    if source != "-" and not path.is_file():
        raise UserError(
            f"There is no file {source!r}. Give a .txt, .csv, .jsonl or .parquet file, or - for standard input."
        )
    return path


def _open_text(path: Path) -> Any:
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")


def _lines_of(path: Path) -> Iterator[tuple[int, Any]]:
    with _open_text(path) as handle:
        yield from _lines(handle, str(path))


def _lines(lines: Iterable[str], source: str) -> Iterator[tuple[int, Any]]:
    """Lines of text; one that is a JSON object is a row."""
    for number, line in _numbered(lines, source):
        row: Any = None
        if line.lstrip().startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):  # a text may begin with a brace
                row = json.loads(line)
        yield number, line.rstrip("\n") if row is None else row


def _objects_of(path: Path) -> Iterator[tuple[int, Any]]:
    with _open_text(path) as handle:
        for number, line in _numbered(handle, str(path)):
            if not line.strip():
                continue
            try:
                yield number, parse_object(line)
            except ValueError as error:
                raise UserError(f"{path}, line {number} {error}") from error


def _numbered(lines: Iterable[str], source: str) -> Iterator[tuple[int, str]]:
    numbered = enumerate(lines, start=1)
    while True:
        try:
            number, line = next(numbered)
            line.encode()  # what standard input couldn't decode is there as half a character
        except StopIteration:
            return
        except UnicodeError as error:
            raise UserError(
                bad_line([source]) or f"{source} isn't UTF-8 text: {one_line(error)}. Convert it."
            ) from error
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{source} can't be read: {sentence(error)} It must be a whole file.") from error
        yield number, line


def _rows_of(source: str, kind: str, delimiter: str | None) -> Iterator[tuple[int, Any]]:
    rows = read_file(source, streaming=not kind.startswith(".json"), delimiter=delimiter)
    with reading(repr(source), what_is_read(kind), [source]):
        yield from enumerate(rows, start=2 if kind.startswith((".csv", ".tsv")) else 1)
