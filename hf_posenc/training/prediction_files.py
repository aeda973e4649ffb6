"""Reads files of texts and writes files of answers row by row; answers keep the input's columns."""

import contextlib
import csv
import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from ..errors import UserError, disk_error, one_line, sentence
from ..files import written_whole
from .arguments import DataArguments
from .data.columns import Columns, find_columns
from .data.reading import read_file, reading, what_is_read
from .model import TOKENS
from .prediction import Prediction, Task, Text
from .text_lines import bad_line, parse_object

WRITTEN = (".csv", ".tsv", ".jsonl", ".parquet")
"""What `--output` writes; the first three also as .gz."""
_BETWEEN_LABELS = "|"
_CHUNK = 1000
_NAMED_ROWS = 10
_LOOKED_AT = 100
"""Rows by which the columns of text are found."""
NO_TEXT = "and answered all the same: such an answer means nothing."
"""The end of every remark on an empty text."""


# ---- reading --------------------------------------------------------------------------------------------------------


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


# ---- writing --------------------------------------------------------------------------------------------------------


def check_output(path: str, source: str | None = None) -> str:
    """The format that a path's suffix names.

    Raises:
        UserError: it names none, or the file is the one that is read.
    """
    file = Path(path)
    kind = Path(path.removesuffix(".gz")).suffix.lower()
    if kind not in WRITTEN or (kind == ".parquet" and path.endswith(".gz")):
        raise UserError(
            f"--output {path!r} names no format. End it in {', '.join(WRITTEN)}; the first three also as .gz."
        )
    if file.is_dir():
        raise UserError(f"--output {path!r} is a folder. Give the name of a file.")
    if source is not None and source != "-" and file.exists() and file.samefile(source):
        raise UserError(f"--output {path!r} is the file that is read. Name another.")
    return kind


def kept_names(columns: Iterable[str], answer: Iterable[str]) -> dict[str, str]:
    """New names of the input's columns that an answer also has: `label` becomes `input_label`."""
    columns, answer = list(columns), set(answer)
    taken = answer | set(columns)
    names = {}
    for name in columns:
        new = name
        while name in answer and new in taken:
            new = f"input_{new}"
        taken.add(new)
        names[name] = new
    return names


def answered_row(prediction: Prediction, task: Task) -> dict[str, Any]:
    """A row of JSON: the columns of the input, then the answer."""
    columns = prediction.input.columns
    kept = kept_names(columns, task.columns)
    return {kept[name]: value for name, value in columns.items()} | prediction.answer


def json_line(prediction: Prediction, task: Task) -> str:
    """One line of JSON."""
    return json.dumps(answered_row(prediction, task), ensure_ascii=False, default=str)


def write_answers(
    path: str, predictions: Iterable[Prediction], task: Task, inputs: Iterable[Text], names: Sequence[str]
) -> int:
    """Writes each input's columns with its answer, in the format of the suffix, whole or not at all.

    Args:
        path: see `check_output`; its folder is made.
        predictions: written as they come.
        task: what the answers are.
        inputs: what the predictions are of, to be read once more where the format wants to know their types.
        names: all columns of the inputs.

    Returns:
        The number of rows.

    Raises:
        UserError: it can't be written.
    """
    kind = check_output(path)
    try:
        with written_whole(path) as temporary:
            if kind == ".jsonl":
                return _write_jsonl(temporary, path.endswith(".gz"), (json_line(one, task) for one in predictions))
            columns = _flat_columns(task)
            kept = kept_names(names, columns)
            rows = (_flat_row(one, task, kept) for one in predictions)
            if kind == ".parquet":
                return _write_parquet(temporary, rows, _schema(inputs, kept, columns))
            delimiter = "\t" if kind == ".tsv" else ","
            return _write_csv(temporary, path.endswith(".gz"), rows, [*kept.values(), *columns], delimiter)
    except OSError as error:
        raise UserError(f"--output {path!r} can't be written: {disk_error(error) or one_line(error)}.") from error


def _flat_columns(task: Task) -> dict[str, pa.DataType]:
    """An answer as columns of one value each, for tables."""
    if task.problem_type == "regression":
        names = ["prediction"] if len(task.names) == 1 else [f"prediction_{name}" for name in task.names]
        return dict.fromkeys(names, pa.float64())
    if task.problem_type == TOKENS:
        return dict.fromkeys(task.columns, pa.list_(pa.string()))
    label = pa.list_(pa.string()) if task.problem_type == "multi_label_classification" else pa.string()
    return {"label": label, **{f"probability_{name}": pa.float64() for name in task.names}}


def _flat_row(prediction: Prediction, task: Task, kept: Mapping[str, str]) -> dict[str, Any]:
    answer = prediction.answer
    row = {kept[name]: value for name, value in prediction.input.columns.items()}
    if "words" in answer:
        return row | answer
    if "prediction" in answer:
        return row | {"prediction": answer["prediction"]}
    if "predictions" in answer:
        return row | {f"prediction_{name}": value for name, value in answer["predictions"].items()}
    return row | {
        "label": answer["label"],
        **{f"probability_{name}": answer["probabilities"].get(name) for name in task.names},
    }


def _open_to_write(path: Path, zipped: bool) -> Any:
    if zipped:
        return gzip.open(path, "wt", encoding="utf-8", newline="")
    return path.open("w", encoding="utf-8", newline="")


def _write_jsonl(path: Path, zipped: bool, lines: Iterable[str]) -> int:
    with _open_to_write(path, zipped) as handle:
        return sum(handle.write(f"{line}\n") > 0 for line in lines)


def _write_csv(path: Path, zipped: bool, rows: Iterable[dict[str, Any]], names: list[str], delimiter: str) -> int:
    with _open_to_write(path, zipped) as handle:
        writer = csv.DictWriter(handle, names, delimiter=delimiter, lineterminator="\n")
        writer.writeheader()
        return sum(writer.writerow({name: _cell(value) for name, value in row.items()}) > 0 for row in rows)


def _cell(value: Any) -> Any:
    """One value: several labels are joined, other lists and objects are JSON."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return _BETWEEN_LABELS.join(value)
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else value


def _schema(inputs: Iterable[Text], kept: Mapping[str, str], columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """The types of all columns; pyarrow infers those of the input from all values."""
    found = pa.schema([])
    for chunk in _chunks(inputs):
        try:
            table = pa.Table.from_pylist([{name: text.columns.get(name) for name in kept} for text in chunk])
            found = pa.unify_schemas([found, table.schema], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(
                f"The columns of the input don't fit a .parquet file: {one_line(error)}. Give --output a .jsonl file."
            ) from error
    fields = [pa.field(new, found.field(name).type) for name, new in kept.items()]
    return pa.schema([*fields, *(pa.field(name, kind) for name, kind in columns.items())])


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema) -> int:
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        for chunk in _chunks(rows):
            count += len(chunk)
            writer.write_table(pa.Table.from_pylist(chunk, schema=schema))
    return count


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
